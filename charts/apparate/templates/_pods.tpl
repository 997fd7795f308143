{{/* What all pods of the chart have in common: they are admitted where Pod Security "restricted" is enforced. */}}

{{/* "true" where user ids are OpenShift's business. */}}
{{- define "apparate.openshift" -}}
{{- $asked := toString .Values.openshift -}}
{{- if eq $asked "auto" -}}
{{- .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- else -}}
{{- $asked -}}
{{- end -}}
{{- end -}}

{{/* Security context of a pod: (dict "root" . "uid" 65532). */}}
{{- define "apparate.podSecurity" -}}
runAsNonRoot: true
{{- if ne (include "apparate.openshift" .root) "true" }}
runAsUser: {{ int .uid }}
runAsGroup: {{ int .uid }}
fsGroup: {{ int .uid }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "apparate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where and how a component's pods run, from its values: (dict "root" . "component" "operator"). */}}
{{- define "apparate.scheduling" -}}
{{- $values := index .root.Values .component -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.affinity }}
affinity:
  {{- toYaml $values.affinity | nindent 2 }}
{{- else if gt (int $values.replicas) 1 }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "apparate.selector" . | nindent 14 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a component's pods. A changed Redis restarts those who have its URL in their environment. */}}
{{- define "apparate.podMetadata" -}}
{{- $values := index .root.Values .component -}}
labels:
  {{- include "apparate.labels" . | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: {{ .component }}
  checksum/redis: {{ pick .root.Values.redis "enabled" "auth" "external" | toJson | sha256sum | trunc 16 }}
  {{- with $values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
