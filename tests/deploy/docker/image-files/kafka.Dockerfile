# Stands for apache/kafka: the real jars, its paths, its user, its environment; the entry script is ours.
FROM local-base
COPY libs /opt/kafka/libs
COPY --chmod=755 kafka-run /etc/kafka/docker/run
COPY --chmod=755 kafka-tool /opt/kafka/bin/kafka-topics.sh
COPY --chmod=755 kafka-tool /opt/kafka/bin/kafka-console-producer.sh
RUN mkdir -p /etc/kafka/secrets /mnt/shared/config /var/lib/kafka/data /opt/kafka/config /opt/kafka/logs \
    && chown -R 1000:1000 /etc/kafka/secrets /mnt/shared/config /var/lib/kafka /opt/kafka/config /opt/kafka/logs
USER 1000
VOLUME ["/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config"]
CMD ["/etc/kafka/docker/run"]
