# Tells of changes to customers: EVENTS_PER_SECOND messages to the topic `customers`, each with a customer's id as its key
# and the trace of who sent it. What changed is not said: whoever reconciles looks for himself.
set -eu
pause=$(awk "BEGIN { print 1 / ${EVENTS_PER_SECOND:-2} }")
while :; do
  printf 'traceparent:00-%08x%08x%08x%08x-%08x%08x-01\tcust-%d\t{}\n' \
    "$SRANDOM" "$SRANDOM" "$SRANDOM" "$SRANDOM" "$SRANDOM" "$SRANDOM" $((SRANDOM % 50))
  sleep "$pause"
done | exec /opt/kafka/bin/kafka-console-producer.sh --bootstrap-server kafka:9092 --topic customers \
  --reader-property parse.key=true --reader-property parse.headers=true
