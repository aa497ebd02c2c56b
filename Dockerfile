# syntax=docker/dockerfile:1
# Three images: `node`, a node of Anabranch; `s3`, the S3 server that docker-compose.yml puts beside it; and `spark`,
# everything that runs on Spark: master, worker, and the pipelines.

FROM golang:1.26-bookworm AS s3-build
RUN CGO_ENABLED=0 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

FROM debian:12-slim AS s3
COPY --from=s3-build /go/bin/versitygw /usr/local/bin/versitygw
# A bucket of this server is a directory.
CMD ["sh", "-c", "mkdir -p /objects/anabranch && exec versitygw --port :7070 posix /objects"]

FROM python:3.11-slim-bookworm AS node
WORKDIR /opt/anabranch
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY broker broker
COPY protocol protocol
COPY s3stream s3stream
COPY wal wal
COPY anabranch anabranch
COPY compaction compaction
COPY spark spark
RUN pip install --no-cache-dir -c constraints.txt '.[postgres]' && useradd --create-home anabranch && install -d -o anabranch /data
USER anabranch
VOLUME /data
EXPOSE 9092 9644
ENV ANABRANCH_DATA_DIR=/data ANABRANCH_HOST=0.0.0.0
ENTRYPOINT ["anabranch"]
CMD ["serve"]

FROM python:3.11-slim-bookworm AS spark
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless maven procps && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/anabranch
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY broker broker
COPY protocol protocol
COPY s3stream s3stream
COPY wal wal
COPY anabranch anabranch
COPY compaction compaction
COPY spark spark
COPY scripts scripts
COPY docs/flights.toml docs/flights.ddl /lake/
ENV ANABRANCH_CACHE=/opt/anabranch/cache SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    PATH=/usr/local/lib/python3.11/site-packages/pyspark/bin:$PATH SPARK_NO_DAEMONIZE=1 SPARK_LOCAL_IP=127.0.0.1
# The jars of the Kafka source and of the table formats are fetched once, into the image.
RUN pip install --no-cache-dir -c constraints.txt '.[spark,demo]' && python -m scripts.tools spark && \
    useradd --create-home anabranch && chown -R anabranch /lake /opt/anabranch
USER anabranch
VOLUME /lake
