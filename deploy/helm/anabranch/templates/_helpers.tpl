{{- define "anabranch.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "anabranch.nodes" -}}
{{ include "anabranch.name" . }}-nodes
{{- end -}}

{{- define "anabranch.selector" -}}
app.kubernetes.io/name: anabranch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "anabranch.labels" -}}
{{ include "anabranch.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "anabranch.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create -}}
{{ include "anabranch.name" . }}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{- /* Whether a pod has one node. Else the ports of its nodes follow each other. */ -}}
{{- define "anabranch.single" -}}
{{ eq (.Values.processes | toString) "1" }}
{{- end -}}
