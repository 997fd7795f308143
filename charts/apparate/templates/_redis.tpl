{{/* How pods reach Redis. */}}
{{- define "apparate.redis.host" -}}
{{- printf "%s.%s.svc" (include "apparate.component" (dict "root" . "component" "redis")) .Release.Namespace -}}
{{- end -}}

{{- define "apparate.redis.secret" -}}
{{- default (include "apparate.component" (dict "root" . "component" "redis")) .Values.redis.auth.existingSecret -}}
{{- end -}}

{{- define "apparate.redis.check" -}}
{{- $external := .Values.redis.external -}}
{{- if and .Values.redis.enabled (or $external.url $external.existingSecret) -}}
{{- fail "redis.enabled is true and redis.external is set: choose one. For a Redis of your own add redis.enabled=false" -}}
{{- else if and (not .Values.redis.enabled) (not $external.url) (not $external.existingSecret) -}}
{{- fail "redis.enabled is false: set redis.external.url, or redis.external.existingSecret to a Secret with the URL" -}}
{{- else if and $external.url $external.existingSecret -}}
{{- fail "redis.external.url and redis.external.existingSecret are both set: choose one" -}}
{{- else if .Values.redis.enabled -}}
{{- include "apparate.redis.checkMemory" . -}}
{{- end -}}
{{- end -}}

{{/* Bytes of a quantity of Kubernetes (256Mi) or Redis (192mb); empty for one that is written in another way. */}}
{{- define "apparate.redis.bytes" -}}
{{- $text := . -}}
{{- if not (kindIs "string" .) -}}
{{- $text = printf "%.0f" (float64 .) -}}
{{- end -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "kb" 1024 "mb" 1048576 "gb" 1073741824 -}}
{{- if regexMatch "^[0-9]+([.][0-9]+)?[A-Za-z]*$" $text -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- if hasKey $units $unit -}}
{{- printf "%.0f" (mulf (trimSuffix $unit $text | float64) (get $units $unit)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Memory for data has to leave room below the limit: else the kernel kills Redis before it refuses a write. */}}
{{- define "apparate.redis.checkMemory" -}}
{{- $limit := dig "limits" "memory" "" (.Values.redis.resources | default dict) -}}
{{- if $limit -}}
{{- $most := include "apparate.redis.bytes" $limit -}}
{{- $data := include "apparate.redis.bytes" .Values.redis.maxMemory -}}
{{- if and $most $data (ge (float64 $data) (float64 $most)) -}}
{{- fail (printf "redis.maxMemory is %s and redis.resources.limits.memory is %v: data must leave Redis room below the limit, or it is killed; three quarters of the limit are good" .Values.redis.maxMemory $limit) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Environment variable with the URL: (dict "root" . "name" "EEM_CONTROLLER_REDIS_URL"). Passwords come from Secrets only. */}}
{{- define "apparate.redis.env" -}}
{{- $redis := .root.Values.redis -}}
{{- include "apparate.redis.check" .root -}}
{{- if $redis.enabled -}}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "apparate.redis.secret" .root }}
      key: {{ $redis.auth.key }}
- name: {{ .name }}
  value: redis://:$(REDIS_PASSWORD)@{{ include "apparate.redis.host" .root }}:6379/0
{{- else if $redis.external.existingSecret -}}
- name: {{ .name }}
  valueFrom:
    secretKeyRef:
      name: {{ $redis.external.existingSecret }}
      key: url
{{- else -}}
- name: {{ .name }}
  value: {{ $redis.external.url | quote }}
{{- end -}}
{{- end -}}

{{/* The bundled Redis's password: the one given, else the one it has, else a new one. */}}
{{- define "apparate.redis.password" -}}
{{- $auth := .Values.redis.auth -}}
{{- if not $auth.password -}}
{{- $name := include "apparate.component" (dict "root" . "component" "redis") -}}
{{- $there := lookup "v1" "Secret" .Release.Namespace $name -}}
{{- if and $there (hasKey ($there.data | default dict) $auth.key) -}}
{{- index $there.data $auth.key | b64dec -}}
{{- else -}}
{{- randAlphaNum 32 -}}
{{- end -}}
{{- else -}}
{{- $auth.password -}}
{{- end -}}
{{- end -}}
