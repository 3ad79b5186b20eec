{{/* The pod, the same for a Deployment and a StatefulSet. */}}
{{- define "evenkeel.pod" -}}
metadata:
  annotations:
    checksum/config: {{ include "evenkeel.configMapData" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "evenkeel.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
    {{- with merge dict .Values.podLabels .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "evenkeel.serviceAccountName" . }}
  automountServiceAccountToken: false
  # Variables that a service named evenkeel would bring are not meant for evenkeel.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds | default (include "evenkeel.leastGrace" .) }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or .Values.initContainers .Values.sidecars }}
  initContainers:
    {{- with .Values.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- range .Values.sidecars }}
    {{- merge (dict "restartPolicy" "Always") . | list | toYaml | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "evenkeel.container" . | nindent 4 }}
  volumes:
    {{- include "evenkeel.volumes" . | nindent 4 }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with include "evenkeel.spread" . }}
  topologySpreadConstraints:
    {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "evenkeel.container" -}}
- name: evenkeel
  image: {{ include "evenkeel.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [run, --config, /etc/evenkeel/evenkeel.yaml]
  securityContext:
    {{- toYaml .Values.securityContext | nindent 4 }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    - name: OTEL_RESOURCE_ATTRIBUTES
      value: >-
        service.instance.id=$(POD_NAME),k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),k8s.node.name=$(NODE_NAME)
    # For the verbs, as in `kubectl exec POD -- evenkeel status`.
    - name: EVENKEEL_SERVER
      value: http://127.0.0.1:{{ include "evenkeel.adminPort" . }}
    - name: EVENKEEL_TOKEN_FILE
      value: /run/secrets/admin/token
    {{- with .Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - name: admin
      containerPort: {{ include "evenkeel.adminPort" . }}
  startupProbe:
    httpGet: {path: /livez, port: admin}
    {{- toYaml .Values.startupProbe | nindent 4 }}
  livenessProbe:
    httpGet: {path: /livez, port: admin}
    {{- toYaml .Values.livenessProbe | nindent 4 }}
  readinessProbe:
    httpGet: {path: /readyz, port: admin}
    {{- toYaml .Values.readinessProbe | nindent 4 }}
  {{- with .Values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: config, mountPath: /etc/evenkeel, readOnly: true}
    - {name: admin-token, mountPath: /run/secrets/admin, readOnly: true}
    - {name: tmp, mountPath: /tmp}
    {{- with include "evenkeel.dataDir" . }}
    - {name: data, mountPath: {{ . | quote }}}
    {{- end }}
    {{- range $name, $file := .Values.files }}
    - {name: file-{{ $name }}, mountPath: /run/secrets/{{ $name }}, readOnly: true}
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Secrets can be read by evenkeel's group alone: what everybody may read is warned about. */}}
{{- define "evenkeel.volumes" -}}
- name: config
  configMap: {name: {{ include "evenkeel.fullname" . }}, defaultMode: 0555}
- name: admin-token
  secret:
    secretName: {{ include "evenkeel.tokenSecret" . }}
    defaultMode: 0440
    items: [{key: {{ .Values.adminToken.key | quote }}, path: token}]
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- if include "evenkeel.dataDir" . }}
- name: data
  {{- with include "evenkeel.claim" . }}
  persistentVolumeClaim: {claimName: {{ . }}}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}
{{- range $name, $file := .Values.files }}
- name: file-{{ $name }}
  {{- if $file.secret }}
  secret: {secretName: {{ $file.secret }}, defaultMode: 0440}
  {{- else }}
  configMap: {name: {{ $file.configMap }}, defaultMode: 0444}
  {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Evenly over nodes and zones, the pods of one version counted alone, as far as there is room. */}}
{{- define "evenkeel.spread" -}}
{{- if kindIs "slice" .Values.topologySpreadConstraints -}}
{{- with .Values.topologySpreadConstraints -}}{{- toYaml . -}}{{- end -}}
{{- else if include "evenkeel.several" . -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels:
      {{- include "evenkeel.selectorLabels" $ | nindent 6 }}
{{- end -}}
{{- end -}}
{{- end -}}
