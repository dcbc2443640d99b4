{{- define "fairlead.selector" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ .Release.Name | toJson }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "fairlead.agent" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ .Release.Name | toJson }}
app.kubernetes.io/component: agent
{{- end }}

{{- define "fairlead.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%v@%v" .Values.image.repository .Values.image.digest | toJson }}
{{- else -}}
{{ printf "%v:%v" .Values.image.repository .Values.image.tag | toJson }}
{{- end }}
{{- end }}

{{- define "fairlead.webSelector" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ .Release.Name | toJson }}
app.kubernetes.io/component: web
{{- end }}

{{- define "fairlead.labels" -}}
{{ include "fairlead.selector" . }}
{{ include "fairlead.commonLabels" . }}
{{- end }}

{{- define "fairlead.webLabels" -}}
{{ include "fairlead.webSelector" . }}
{{ include "fairlead.commonLabels" . }}
{{- end }}

{{- define "fairlead.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | toJson }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/managed-by: {{ .Release.Service | toJson }}
{{- if eq .Release.Service "Helm" }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | toJson }}
{{- end }}
{{- end }}
