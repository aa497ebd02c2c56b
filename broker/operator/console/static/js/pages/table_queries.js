// Queries of a table by engine, ready to be copied. docs/tables-engines.md says more of each.

/** Return a name as a part of one in SQL: plain if it may be, else in quotes. */
const sqlName = (name, quote) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `${quote}${name.replaceAll(quote, quote + quote)}${quote}`);

/** Return a table's name for pyiceberg, which takes dots as separators. */
const pythonName = (name) => (name.includes(".") ? `("default", "${name}")` : `"default.${name}"`);

const loadCatalog = ({ uri, token }) =>
  ["from pyiceberg.catalog import load_catalog", "", `catalog = load_catalog("anabranch", type="rest", uri="${uri}"${token && `, token="${token}"`})`].join("\n");

/** Engines by name: their title, what they need, and `query({uri, name, token, inS3})`, whose token may be empty. */
export const ENGINES = {
  spark: {
    title: "Spark",
    note: "Iceberg's runtime has to be that of your Spark and Scala: this one is for Spark 4.1.",
    query: ({ uri, name, token, inS3 }) =>
      `from pyspark.sql import SparkSession

spark = (
    SparkSession.builder
    .config("spark.jars.packages", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0${inS3 ? ",org.apache.iceberg:iceberg-aws-bundle:1.12.0" : ""}")
    .config("spark.sql.catalog.anabranch", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.anabranch.type", "rest")
    .config("spark.sql.catalog.anabranch.uri", "${uri}")${token && `\n    .config("spark.sql.catalog.anabranch.token", "${token}")`}
    .getOrCreate()
)
spark.table("anabranch.default.${sqlName(name, "`")}").show()`,
  },
  pyiceberg: {
    title: "pyiceberg",
    note: "pip install 'pyiceberg[pyarrow]'",
    query: (of) => `${loadCatalog(of)}\nprint(catalog.load_table(${pythonName(of.name)}).scan(limit=10).to_arrow())`,
  },
  duckdb: {
    title: "DuckDB",
    note: "The extension is downloaded when it is installed. The command anabranch table query needs none.",
    query: ({ uri, name, token }) =>
      `INSTALL iceberg; LOAD iceberg;
ATTACH '' AS anabranch (TYPE iceberg, ENDPOINT '${uri}', ${token ? `TOKEN '${token}'` : "AUTHORIZATION_TYPE 'none'"});
FROM anabranch."default".${sqlName(name, '"')} LIMIT 10;`,
  },
  polars: {
    title: "Polars",
    note: "pip install polars 'pyiceberg[pyarrow]'. For S3, scan_iceberg takes address and keys as storage_options.",
    query: (of) => `import polars\n${loadCatalog(of)}\nprint(polars.scan_iceberg(catalog.load_table(${pythonName(of.name)})).head(10).collect())`,
  },
  trino: {
    title: "Trino",
    note: "The properties belong in etc/catalog/anabranch.properties; for S3, s3.region and keys too.",
    query: ({ uri, name, token, inS3 }) =>
      `connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri=${uri}
${inS3 ? "fs.native-s3.enabled=true" : "fs.hadoop.enabled=true"}${token && `\niceberg.rest-catalog.security=OAUTH2\niceberg.rest-catalog.oauth2.token=${token}`}

SELECT * FROM anabranch."default".${sqlName(name, '"')} LIMIT 10;`,
  },
};

/** Return the query of a table for an engine. `needsToken`: clients need a token of the admin port. */
export function queryOf(engine, table, needsToken) {
  const inS3 = table.location?.startsWith("s3:") ?? false;
  return ENGINES[engine].query({ uri: `${location.origin}/iceberg`, name: table.name, token: needsToken ? "TOKEN" : "", inS3 });
}
