# Stand for public images that hold hardly more than programs: the same versions, paths, users and entries.
FROM scratch AS etcd
COPY etcd etcdctl /usr/local/bin/
ENV PATH=/usr/local/bin
CMD ["/usr/local/bin/etcd"]

FROM scratch AS otelcol
COPY otelcol /otelcol-contrib
USER 10001:10001
ENTRYPOINT ["/otelcol-contrib"]

FROM scratch AS jaeger
COPY jaeger /cmd/jaeger/jaeger-linux
ENV JAEGER_LISTEN_HOST=0.0.0.0
USER 10001
ENTRYPOINT ["/cmd/jaeger/jaeger-linux"]

FROM scratch AS prometheus
COPY prometheus promtool /bin/
COPY --chown=65534:65534 empty /prometheus
ENV PATH=/bin
USER 65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]

FROM scratch AS pause
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
