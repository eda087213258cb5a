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

{{- define "mizzen.gpuClasses" -}}
{{- $classes := list -}}
{{- range $name, $memory := .Values.gpuClasses -}}
{{- $classes = append $classes (printf "%s=%s" $name $memory) -}}
{{- end -}}
{{- join "," $classes -}}
{{- end -}}

{{- define "mizzen.image" -}}
{{- $image := .value | default (printf "%s:%s" .name .context.Chart.AppVersion) -}}
{{- /* A first part with a dot or a port is a registry already, as container engines read names. */ -}}
{{- if and .context.Values.imageRegistry (not (regexMatch "^([^/]*[.:][^/]*|localhost)/" $image)) -}}
{{- printf "%s/%s" .context.Values.imageRegistry $image -}}
{{- else -}}
{{- $image -}}
{{- end -}}
{{- end -}}
