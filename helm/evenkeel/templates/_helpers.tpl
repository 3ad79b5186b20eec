{{/* Names, labels, and what several objects must agree on. */}}

{{- define "evenkeel.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* By what an object of this release is found. */}}
{{- define "evenkeel.instanceLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The pods that run evenkeel, and not those of the tests. */}}
{{- define "evenkeel.selectorLabels" -}}
{{ include "evenkeel.instanceLabels" . }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "evenkeel.labels" -}}
{{ include "evenkeel.instanceLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "evenkeel.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "evenkeel.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "evenkeel.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "evenkeel.tokenSecret" -}}
{{ .Values.adminToken.existingSecret | default (printf "%s-admin" (include "evenkeel.fullname" .)) }}
{{- end -}}

{{/* The configuration as evenkeel reads it. With etcd there is no file store to name. */}}
{{- define "evenkeel.config" -}}
{{- $config := .Values.config -}}
{{- if $config.etcd -}}
{{- $config = omit $config "data_dir" -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "evenkeel.adminPort" -}}
{{- regexFind "[0-9]+$" .Values.config.admin.listen -}}
{{- end -}}

{{/* Where the claim is mounted; empty where nothing is kept on disk. */}}
{{- define "evenkeel.dataDir" -}}
{{- $dir := .Values.config.data_dir | default "none" -}}
{{- if not (or .Values.config.etcd (eq $dir "none")) -}}
{{- $dir -}}
{{- end -}}
{{- end -}}

{{/* The claim's name; empty where there is none. */}}
{{- define "evenkeel.claim" -}}
{{- if and .Values.persistence.enabled (include "evenkeel.dataDir" .) -}}
{{- .Values.persistence.existingClaim | default (printf "%s-data" (include "evenkeel.fullname" .)) -}}
{{- end -}}
{{- end -}}

{{/* More than one process, now or when the load asks for it. */}}
{{- define "evenkeel.several" -}}
{{- if or (gt (int .Values.replicaCount) 1) .Values.autoscaling.enabled -}}true{{- end -}}
{{- end -}}

{{/* A duration as the configuration writes it, such as 1h30m, in whole seconds. */}}
{{- define "evenkeel.seconds" -}}
{{- if not (regexMatch "^([0-9]+(ms|s|m|h|d))+$" .) -}}
{{- fail (printf "config.drain_timeout is %q, which is no duration such as 30s or 1m30s" .) -}}
{{- end -}}
{{- $unit := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" . -1 -}}
{{- $sum = add $sum (mul (regexFind "^[0-9]+" . | int64) (get $unit (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- div (add $sum 999) 1000 -}}
{{- end -}}

{{/* How long a stop in order may take: the drain, the last commit (5 s), the last telemetry (3 s), a margin (B81). */}}
{{- define "evenkeel.leastGrace" -}}
{{- add 10 (include "evenkeel.seconds" (toString (.Values.config.drain_timeout | default "30s"))) -}}
{{- end -}}

{{/* Whether an object of an operator is wanted: CHOICE, the KIND that the cluster must know, and what else must be. */}}
{{- define "evenkeel.wanted" -}}
{{- $known := .root.Capabilities.APIVersions.Has .kind -}}
{{- if or (eq .choice "always") (and (eq .choice "auto") $known .also) -}}true{{- end -}}
{{- end -}}
