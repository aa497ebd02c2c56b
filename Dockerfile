# syntax=docker/dockerfile:1
# Three images: `node`, a node of Anabranch; `s3`, the S3 server that docker-compose.yml puts beside it; and `spark`,
# everything that runs on Spark: master, worker, and the pipelines. Bases are pinned to a version; pin them to a digest
# (NAME:TAG@sha256:...) where builds must be repeatable.

FROM golang:1.26.8-bookworm AS s3-build
RUN CGO_ENABLED=0 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

FROM debian:12.12-slim AS s3
COPY --from=s3-build /go/bin/versitygw /usr/local/bin/versitygw
# A bucket of this server is a directory.
CMD ["sh", "-c", "mkdir -p /objects/anabranch && exec versitygw --port :7070 posix /objects"]

# The environment is built in one stage and copied to the next, which so has no build tools and no source.
FROM python:3.13.9-slim-bookworm AS node-build
RUN python -m venv /opt/anabranch
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY broker broker
COPY protocol protocol
COPY s3stream s3stream
COPY wal wal
COPY src src
COPY compaction compaction
COPY spark spark
COPY tables tables
RUN /opt/anabranch/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[node]' && \
    rm -rf /opt/anabranch/lib/python3.13/site-packages/pip /opt/anabranch/lib/python3.13/site-packages/pip-* \
        /opt/anabranch/bin/pip*

FROM python:3.13.9-slim-bookworm AS node
RUN useradd --uid 10001 --no-create-home anabranch && install -d -o anabranch /data
COPY --from=node-build /opt/anabranch /opt/anabranch
USER 10001
VOLUME /data
EXPOSE 9092 9644
ENV PATH=/opt/anabranch/bin:$PATH ANABRANCH_DATA_DIR=/data ANABRANCH_HOST=0.0.0.0
# The node finishes its requests and uploads the rest of its log on SIGTERM: give it the time (docker stop -t 60).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9644/health/ready', timeout=4)"]
ENTRYPOINT ["anabranch"]
CMD ["serve"]

FROM python:3.11.14-slim-bookworm AS spark
# Debian keeps one version of each package only: none is named.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless maven procps && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/anabranch
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY broker broker
COPY protocol protocol
COPY s3stream s3stream
COPY wal wal
COPY src src
COPY compaction compaction
COPY spark spark
COPY tables tables
COPY scripts scripts
COPY docs/flights.toml docs/flights.ddl /lake/
ENV ANABRANCH_CACHE=/opt/anabranch/cache SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    PATH=/usr/local/lib/python3.11/site-packages/pyspark/bin:$PATH SPARK_NO_DAEMONIZE=1 SPARK_LOCAL_IP=127.0.0.1
# The jars of the Kafka source, the table formats and S3 are fetched once, into the image.
RUN pip install --no-cache-dir -c constraints.txt '.[spark,demo]' && python -m scripts.tools spark && \
    useradd --uid 10001 --create-home anabranch && chown -R anabranch /lake /opt/anabranch
USER 10001
VOLUME /lake
