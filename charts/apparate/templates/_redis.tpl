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
