# The topics of docker-compose.yml. As many partitions as shards, or a multiple of it.
set -eu
topic() { # NAME PARTITIONS
  /opt/kafka/bin/kafka-topics.sh --bootstrap-server kafka:9092 --create --if-not-exists \
    --topic "$1" --partitions "$2" --replication-factor 1
}
topic customers 6
topic customers.failed 1
# As many partitions as shards: each takes the events of its shard that came elsewhere.
topic customers.hand-off 3
