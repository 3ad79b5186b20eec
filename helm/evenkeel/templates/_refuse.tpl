{{/* What cannot work is refused here, with what to do instead. Everything else in `config` evenkeel checks at its start. */}}
{{- define "evenkeel.refuse" -}}
{{- $config := .Values.config -}}
{{- if not $config.name -}}
{{- fail "config.name is missing: it names the consumer group and the prefix in etcd; set it, as in config: {name: billing}" -}}
{{- end -}}
{{- if not (or $config.reconciler $config.kinds) -}}
{{- fail "config.reconciler is missing: it says what is called for an id; set it, as in config: {reconciler: {webhook: \"http://127.0.0.1:8080/reconcile\"}}" -}}
{{- end -}}
{{- if and (include "evenkeel.several" .) (not $config.etcd) -}}
{{- fail "more than one replica needs config.etcd: without it every process leads all shards, and two would do the same work twice; set config.etcd.endpoints, or replicaCount: 1 and autoscaling.enabled: false" -}}
{{- end -}}
{{- $listen := $config.admin.listen | default "" -}}
{{- if not (regexMatch ":[0-9]+$" $listen) -}}
{{- fail (printf "config.admin.listen is %q: probes and Prometheus need an address with a port, such as 0.0.0.0:7070" $listen) -}}
{{- end -}}
{{- if regexMatch "^(127\\.|\\[::1\\]|localhost)" $listen -}}
{{- fail (printf "config.admin.listen is %q: probes come from outside the pod's loopback; use 0.0.0.0 or [::], and networkPolicy to say who may reach it" $listen) -}}
{{- end -}}
{{- $least := int (include "evenkeel.leastGrace" .) -}}
{{- $grace := int (.Values.terminationGracePeriodSeconds | default $least) -}}
{{- if lt $grace $least -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but a drain of %s needs %d: every stop would be cut short; leave it out, or lower config.drain_timeout" $grace ($config.drain_timeout | default "30s") $least) -}}
{{- end -}}
{{- range .Values.env -}}
{{- $shapes := regexMatch "^EVENKEEL__(NAME|SHARDS|DATA_DIR|DRAIN_TIMEOUT|ADMIN|ADMIN__LISTEN|ETCD)$" .name -}}
{{- if or $shapes (and (hasPrefix "EVENKEEL__ETCD__" .name) (not $config.etcd)) -}}
{{- fail (printf "env sets %s, on which other objects of the chart depend; set it in config instead" .name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts is empty: name the hosts by which the admin server is reached" -}}
{{- end -}}
{{- if .Values.autoscaling.enabled -}}
{{- include "evenkeel.refuseAutoscaling" . -}}
{{- end -}}
{{- end -}}

{{- define "evenkeel.refuseAutoscaling" -}}
{{- $config := .Values.config -}}
{{- $most := int .Values.autoscaling.maxReplicas -}}
{{- if gt (int .Values.autoscaling.minReplicas) $most -}}
{{- fail (printf "autoscaling.minReplicas is %d, more than autoscaling.maxReplicas, %d" (int .Values.autoscaling.minReplicas) $most) -}}
{{- end -}}
{{- if gt $most (int ($config.shards | default 1)) -}}
{{- fail (printf "autoscaling.maxReplicas is %d, but config.shards is %d: a replica without a shard has nothing to do; lower the one or raise the other" $most (int ($config.shards | default 1))) -}}
{{- end -}}
{{- $topics := 0 -}}
{{- range $config.streams -}}
{{- $topics = add $topics (len ((.kafka | default dict).topics | default list)) -}}
{{- end -}}
{{- if not (and $topics ($config.kafka | default dict).brokers) -}}
{{- fail "autoscaling goes by Kafka's lag: it needs a stream of config.streams with kafka.topics, and config.kafka.brokers" -}}
{{- end -}}
{{- end -}}
