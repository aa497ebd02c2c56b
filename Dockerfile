# syntax=docker/dockerfile:1
# Two images: `node`, a node of Anabranch, and `s3`, the S3 server that docker-compose.yml puts beside it.

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
COPY compaction compaction
COPY spark spark
RUN pip install --no-cache-dir -c constraints.txt . && useradd --create-home anabranch && install -d -o anabranch /data
USER anabranch
VOLUME /data
EXPOSE 9092 9644
ENV ANABRANCH_DATA_DIR=/data ANABRANCH_HOST=0.0.0.0
ENTRYPOINT ["anabranch"]
CMD ["serve"]
