// Queries of a table by engine, ready to be copied. docs/tables-engines.md has the same.

/** Return a name as a part of one in SQL: plain if it may be, else in quotes. */
const sqlName = (name, quote) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `${quote}${name.replaceAll(quote, quote + quote)}${quote}`);

/** Return a text as a literal of Python. */
const literal = (text) => JSON.stringify(text);

/** Engines by name: their title, a note about what they need, and `query({uri, name, token})`, whose token may be empty. */
export const ENGINES = {
  spark: {
    title: "Spark",
    note: "In pyspark, with the package iceberg-spark-runtime of your Spark.",
    query: ({ uri, name, token }) =>
      [
        `for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": ${literal(uri)}${token && `, ".token": ${literal(token)}`}}.items():`,
        `    spark.conf.set("spark.sql.catalog.anabranch" + key, value)`,
        `spark.sql("SELECT * FROM anabranch.default.${sqlName(name, "`")} LIMIT 10").show()`,
      ].join("\n"),
  },
  pyiceberg: {
    title: "pyiceberg",
    note: "In Python, with pip install 'pyiceberg[pyarrow]'.",
    query: ({ uri, name, token }) =>
      [
        "from pyiceberg.catalog import load_catalog",
        "",
        `catalog = load_catalog("anabranch", type="rest", uri=${literal(uri)}${token && `, token=${literal(token)}`})`,
        `print(catalog.load_table(("default", ${literal(name)})).scan(limit=10).to_arrow())`,
      ].join("\n"),
  },
  duckdb: {
    title: "DuckDB",
    note: "In DuckDB, with its extension iceberg.",
    query: ({ uri, name, token }) =>
      [
        "INSTALL iceberg; LOAD iceberg;",
        `ATTACH '' AS anabranch (TYPE iceberg, ENDPOINT '${uri}', ${token ? `TOKEN '${token}'` : "AUTHORIZATION_TYPE 'none'"});`,
        `SELECT * FROM anabranch."default".${sqlName(name, '"')} LIMIT 10;`,
      ].join("\n"),
  },
  polars: {
    title: "Polars",
    note: "In Python, with pip install polars 'pyiceberg[pyarrow]'.",
    query: ({ uri, name, token }) =>
      [
        "import polars",
        "from pyiceberg.catalog import load_catalog",
        "",
        `catalog = load_catalog("anabranch", type="rest", uri=${literal(uri)}${token && `, token=${literal(token)}`})`,
        `print(polars.scan_iceberg(catalog.load_table(("default", ${literal(name)}))).head(10).collect())`,
      ].join("\n"),
  },
  trino: {
    title: "Trino",
    note: "The properties are those of a catalog, in etc/catalog/anabranch.properties.",
    query: ({ uri, name, token }) =>
      [
        "connector.name=iceberg",
        "iceberg.catalog.type=rest",
        `iceberg.rest-catalog.uri=${uri}`,
        ...(token ? ["iceberg.rest-catalog.security=OAUTH2", `iceberg.rest-catalog.oauth2.token=${token}`] : []),
        "",
        `SELECT * FROM anabranch."default".${sqlName(name, '"')} LIMIT 10;`,
      ].join("\n"),
  },
};

/** Return the query of an engine. `needsToken`: clients need a token of the admin port. */
export const queryOf = (engine, name, needsToken) =>
  ENGINES[engine].query({ uri: `${location.origin}/iceberg`, name, token: needsToken ? "TOKEN" : "" });
