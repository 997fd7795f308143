{{/* Names and labels. Each takes the root context, or a dict of root and component. */}}
{{- define "apparate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "apparate.fullname" -}}
{{- $name := include "apparate.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of a component's objects: (dict "root" . "component" "operator"). */}}
{{- define "apparate.component" -}}
{{- printf "%s-%s" (include "apparate.fullname" .root) .component -}}
{{- end -}}

{{/* What selects a component's pods. Never changes: a Deployment's selector is immutable. */}}
{{- define "apparate.selector" -}}
app.kubernetes.io/name: {{ include "apparate.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "apparate.labels" -}}
{{ include "apparate.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: apparate
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Image of the product: (dict "root" . "image" .Values.operator.image). */}}
{{- define "apparate.image" -}}
{{- $at := printf "%s/%s" .root.Values.image.registry .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $at .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $at (default .root.Chart.AppVersion .root.Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "apparate.serviceAccount" -}}
{{- $values := index .root.Values .component -}}
{{- default (ternary (include "apparate.component" .) "default" $values.serviceAccount.create) $values.serviceAccount.name -}}
{{- end -}}

{{/* Labels as NAME=VALUE with commas between. */}}
{{- define "apparate.pairs" -}}
{{- $pairs := list -}}
{{- range $name, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $name $value) }}{{ end -}}
{{- join "," $pairs -}}
{{- end -}}
