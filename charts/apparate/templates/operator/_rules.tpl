{{/* What the operator does in a namespace whose EarlyExitModels it serves: what it checks at its start, and Events. */}}
{{- define "apparate.operator.rules" -}}
- apiGroups: [apparate.dev]
  resources: [earlyexitmodels]
  verbs: [get, list, watch]
- apiGroups: [apparate.dev]
  resources: [earlyexitmodels/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, create, patch, delete]
{{- if or .Values.redis.enabled (not .Values.redis.external.workerSecret) }}
- apiGroups: [""]
  resources: [secrets] # with the URL of Redis, one for each model; `redis.external.workerSecret` needs no such right
  verbs: [get, list, create, patch, delete]
{{- end }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io] # a worker may read its own object; nobody grants more than he has
  resources: [roles, rolebindings]
  verbs: [get, list, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, create, patch, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, create, patch, delete]
{{- if not .Values.namespaces }}
- apiGroups: [apiextensions.k8s.io] # to say when it is of an older version; works without, and says nothing then
  resources: [customresourcedefinitions]
  resourceNames: [earlyexitmodels.apparate.dev]
  verbs: [get]
{{- end }}
- apiGroups: [""]
  resources: [events] # to read why a Job gets no pods: nothing but its Events says so
  verbs: [create, list]
{{- end -}}
