{{/* Beginning of all names: the release's name, or of a long one its beginning and a digest of all of it. */}}
{{- define "quire.name" -}}
{{- if gt (len .Release.Name) 30 -}}
{{- printf "%s-%s" (.Release.Name | trunc 21 | trimAll "-.") (sha256sum .Release.Name | trunc 8) -}}
{{- else -}}
{{- .Release.Name -}}
{{- end -}}
{{- end -}}

{{- define "quire.labels" -}}
app.kubernetes.io/name: quire
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .model }}
quire/model: {{ . | quote }}
{{- end }}
{{- with .pool }}
quire/pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "quire.metadata" -}}
name: {{ .name | quote }}
labels:
  {{- include "quire.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "quire.image" -}}
{{- with .root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
quire-{{ .image }}:{{ get (default dict .root.Values.images.tags) .image | default .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{/* Who a pod's processes are, as values say it; a field that is null there is left out. */}}
{{- define "quire.securityContext" -}}
{{- $fixed := dict "runAsNonRoot" true "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (merge $fixed (default dict .)) -}}
{{- end -}}

{{/* Settings as a container's `env`: the chart's own, over them those of all processes, over them the component's. */}}
{{- define "quire.env" -}}
{{- $settings := deepCopy .own -}}
{{- range $given := list .root.Values.env .env }}
{{- range $name, $value := $given }}{{ $_ := set $settings $name $value }}{{ end }}
{{- end }}
{{- range $name, $value := $settings }}
- name: {{ $name | quote }}
  {{- /* Helm reads numbers of a file as floats, and writes large ones with an exponent. */}}
  {{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}
  value: {{ printf "%.0f" $value | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A Deployment of one kind of process. */}}
{{- define "quire.deployment" -}}
{{- $root := .root -}}
{{- $stop := int $root.Values.stopSeconds -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "quire.metadata" . | nindent 2 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .replicas }}
  {{- end }}
  progressDeadlineSeconds: 3600 # a first start may fetch a model
  selector:
    matchLabels:
      {{- include "quire.labels" . | nindent 6 }}
  strategy:
    # A new process serves before an old one is asked to stop, if there is room for both: a GPU has none.
    rollingUpdate: {{ ternary (dict "maxSurge" 0 "maxUnavailable" 1) (dict "maxSurge" 1 "maxUnavailable" 0) (gt (int .gpus) 0) | toJson }}
  template:
    metadata:
      labels:
        {{- include "quire.labels" . | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      # A probe that finds a hung process ends it, which nobody can do to process 1 of a container of its own.
      shareProcessNamespace: true
      terminationGracePeriodSeconds: {{ add $stop 15 }}
      securityContext:
        {{- include "quire.securityContext" $root.Values.securityContext | nindent 8 }}
      {{- with $root.Values.images.pullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      {{- with .nodeSelector }}
      nodeSelector: {{ toJson . }}
      {{- end }}
      {{- with .tolerations }}
      tolerations: {{ toJson . }}
      {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "quire.labels" . | nindent 14 }}
      containers:
        - name: {{ .service }}
          image: {{ include "quire.image" . }}
          imagePullPolicy: {{ $root.Values.images.pullPolicy }}
          command: [python, -m, {{ .module }}]
          env:
            {{- include "quire.env" . | nindent 12 }}
            {{- if .threads }}
            - name: QUIRE_THREADS
              valueFrom: { resourceFieldRef: { resource: requests.cpu } }
            {{- end }}
            {{- with .hubToken }}
            - name: HF_TOKEN
              valueFrom: { secretKeyRef: { name: {{ . | quote }}, key: token } }
            {{- end }}
          {{- if or (eq .service "gateway") $root.Values.metricsPort }}
          ports:
            {{- if eq .service "gateway" }}
            - { name: http, containerPort: 8000 }
            {{- end }}
            {{- with $root.Values.metricsPort }}
            - { name: metrics, containerPort: {{ . }} }
            {{- end }}
          {{- end }}
          {{- if eq .service "gateway" }}
          startupProbe:
            httpGet: { path: /health/live, port: http }
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: { path: /health/live, port: http }
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: { path: /health/ready, port: http }
            periodSeconds: 2
            timeoutSeconds: 5
          lifecycle:
            # Time in which load balancers learn that no new connection should come here.
            preStop: { exec: { command: [sleep, "5"] } }
          {{- else }}
          # Ready is a process that takes calls. The probe fails while a model loads, and while Redis is away, when nothing
          # should be restarted: so it is no livenessProbe, and ends a process that hangs by itself.
          readinessProbe:
            exec: { command: [python, -m, ops.runtime.health, {{ .service }}, --end-after, "3"] }
            periodSeconds: 15
            timeoutSeconds: 10
            failureThreshold: 3
          {{- end }}
          resources:
            {{- $resources := default dict .resources | deepCopy }}
            {{- if gt (int .gpus) 0 }}
            {{- $limits := merge (dict "nvidia.com/gpu" (int .gpus)) (default dict $resources.limits) }}
            {{- $resources = merge (dict "limits" $limits) $resources }}
            {{- end }}
            {{- toYaml $resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: { drop: [ALL] }
          volumeMounts:
            - { name: tmp, mountPath: /tmp }
            - { name: secrets, mountPath: /run/secrets/quire, readOnly: true }
            {{- range .mounts }}
            - {{ toJson . }}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: { sizeLimit: 64Mi }
        # Of the Secret each process sees its own user of Redis.
        - name: secrets
          secret:
            secretName: {{ $root.Values.secretName | quote }}
            items:
              - { key: {{ .service }}.url, path: redis-url }
              - { key: secret, path: deployment }
              {{- with $root.Values.redis.caKey }}
              - { key: {{ . | quote }}, path: redis-ca }
              {{- end }}
        {{- range .volumes }}
        - {{ toJson . }}
        {{- end }}
{{- end -}}

{{/* At most one pod of a kind is taken away at once, as when a node is emptied. */}}
{{- define "quire.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "quire.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "quire.labels" . | nindent 6 }}
{{- end -}}

{{/* Settings that every process has. */}}
{{- define "quire.common" -}}
QUIRE_REDIS_URL_FILE: /run/secrets/quire/redis-url
QUIRE_SECRET_FILE: /run/secrets/quire/deployment
{{- if .Values.redis.caKey }}
QUIRE_REDIS_CA_FILE: /run/secrets/quire/redis-ca
{{- end }}
QUIRE_STOP_SECONDS: {{ .Values.stopSeconds | quote }}
QUIRE_LOG_FORMAT: json
{{- with .Values.traces }}
QUIRE_OTLP_ENDPOINT: {{ . | quote }}
{{- end }}
{{- with .Values.metricsPort }}
QUIRE_METRICS_ADDRESS: "0.0.0.0:{{ . }}"
{{- end }}
{{- end -}}
