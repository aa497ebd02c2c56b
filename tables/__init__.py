"""Records as the rows of a table: what turns Kafka's batches into Arrow columns, strictly, and without a stop.

The room stands between `s3stream`, whose blocks it reads, and those who make tables: the node, for topics that are
tables, and `spark`, for pipelines and the direct source. One set of rules decides for both what a value is, so it knows
Arrow's types only, not Spark's. Its packages are optional: `anabranch.extras` names the extra.

    blocks     blocks of objects to Arrow batches of records, as READ_COMMITTED shows them (records, ranges,
               transactions)
    decoding   values to data or an error each (values), in JSON (json_columns, json_blocks, json_values, json_schema),
               Avro and protobuf, with schemas of a registry
    schema     columns of a table and their ids, which follow the schemas of values (conform)
    rows       records to rows of a table
    row_files  rows to a Parquet file, with its statistics (metrics): those of some blocks (share, requests, parts), and
               those of other files (joins)
    iceberg    the files of a table's next version (snapshots, manifests, iceberg_schema)
    worker     the process of its own that makes all of these (process)
    upkeep     what a node does for the tables of its topics
"""
