{{/* What the controller does in a namespace whose EarlyExitModels it adapts. */}}
{{- define "apparate.controller.rules" -}}
- apiGroups: [apparate.dev]
  resources: [earlyexitmodels]
  verbs: [get, list, watch]
- apiGroups: [apparate.dev]
  resources: [earlyexitmodels/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps] # the catalog of a prepared model
  verbs: [get]
{{- end -}}
