{{- define "mizzen.name" -}}
{{- if contains "mizzen" .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-mizzen-operator" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mizzen.selector" -}}
app.kubernetes.io/name: mizzen-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mizzen.labels" -}}
{{ include "mizzen.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "mizzen.image" -}}
{{- .value | default (printf "%s:%s" .name .context.Chart.AppVersion) -}}
{{- end -}}
