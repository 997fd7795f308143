"""What a user may say of the pods: resources, GPU, and the parts of a pod template that are passed on."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from apparate.contract.shape import ListMap, Opaque, OpenShape, Quantity, Rule, Secret, Shape, Word

GPU_RESOURCE = "nvidia.com/gpu"
Amounts = Annotated[dict[str, Quantity], Field(max_length=16)]
Labels = Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=32)]
Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]


def _mig(amounts: dict[str, str]) -> list[str]:
    return [amount for name, amount in amounts.items() if "/mig-" in name]


class Resources(Shape):
    """Requests and limits of a container, as Kubernetes has them."""

    requests: Amounts = Field(default={}, description="What the scheduler sets aside, such as {cpu: 2, memory: 4Gi}.")
    limits: Amounts = Field(default={}, description="What the container may use at most; passed on untouched.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.limits.all(name, !name.contains('/mig-') || string(self.limits[name]) == '1') && "
            "self.limits.filter(name, name.contains('/mig-')).size() <= 1",
            "limits ask for more than one MIG device: a container can use only one",
            lambda resources: _mig(resources.limits) in ([], ["1"]),
        ),
    )


class Gpu(Shape):
    """GPUs of one container. Nothing is asked for when this part is missing."""

    count: int = Field(default=1, ge=1, le=16, description="Number of GPUs; 1 with a MIG profile.")
    resource_name: str = Field(
        default=GPU_RESOURCE,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="Name of the resource that the device plugin offers.",
    )
    mig_profile: str | None = Field(
        default=None,
        max_length=32,
        pattern=r"^[1-9]g\.[1-9][0-9]{0,2}gb(\.[a-z.]+)?$",
        description="MIG profile such as 1g.10gb, for device plugins with the strategy `mixed`, which offer "
        "nvidia.com/mig-1g.10gb. With the strategy `single` leave it out: a slice is called nvidia.com/gpu.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.count == 1 || !(has(self.migProfile) || self.resourceName.contains('/mig-'))",
            "gpu.count is {count}: a container can use only one MIG device",
            lambda gpu: gpu.count == 1 or not (gpu.mig_profile or "/mig-" in gpu.resource_name),
        ),
        Rule(
            "!has(self.migProfile) || !self.resourceName.contains('/mig-')",
            "gpu.resourceName is {resourceName} and migProfile is set: name the MIG device once",
            lambda gpu: gpu.mig_profile is None or "/mig-" not in gpu.resource_name,
        ),
    )

    @property
    def resource(self) -> str:
        """The extended resource that a container asks for."""
        if self.mig_profile is None:
            return self.resource_name
        return f"{self.resource_name.partition('/')[0]}/mig-{self.mig_profile}"

    def amounts(self) -> dict[str, str]:
        """What is added to a container's limits."""
        return {self.resource: str(self.count)}


class Toleration(Shape):
    """A taint that the pods put up with."""

    key: Word | None = Field(default=None, description="Key of the taint; every key when it is missing.")
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="How key and value are compared.")
    value: Word | None = Field(default=None, description="Value of the taint, for Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; every effect when it is missing."
    )
    toleration_seconds: int | None = Field(
        default=None, ge=0, description="How long NoExecute is put up with, in seconds; for ever when it is missing."
    )


class SecretReference(Shape):
    """A Secret by name."""

    name: Secret = Field(description="Name of a Secret in the namespace of the EarlyExitModel.")


class EnvVar(Shape):
    """A variable of the worker's environment."""

    name: str = Field(
        min_length=1, max_length=253, pattern=r"^[-._A-Za-z][-._A-Za-z0-9]*$", description="Name of the variable."
    )
    value: str | None = Field(default=None, max_length=32_768, description="Its value.")
    value_from: Opaque | None = Field(
        default=None, description="Where its value is read from: secretKeyRef, configMapKeyRef or fieldRef."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            "env {name} has both value and valueFrom: give one of them",
            lambda env: env.value is None or env.value_from is None,
        ),
    )


class Volume(OpenShape):
    """A volume of the pod, as Kubernetes has it."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63, description="Name of the volume.")


class VolumeMount(OpenShape):
    """Where a volume is mounted, as Kubernetes has it."""

    name: str = Field(max_length=63, description="Name of the volume.")
    mount_path: str = Field(min_length=1, max_length=4096, description="Path in the container.")


class SecurityContexts(Shape):
    """Overrides of what the pods are allowed; the defaults satisfy the Pod Security Standard `restricted`."""

    pod: Opaque | None = Field(default=None, description="Merged over the pod's securityContext.")
    container: Opaque | None = Field(default=None, description="Merged over each container's securityContext.")


class PodTemplate(Shape):
    """What is added to the pods: where they run, what they see, how they are labelled."""

    labels: Labels = Field(default={}, description="Labels of the pods; the operator's own win.")
    annotations: Annotations = Field(default={}, description="Annotations of the pods; the operator's own win.")
    node_selector: Labels = Field(default={}, description="Labels that a node must have.")
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Taints that are put up with.")
    affinity: Opaque | None = Field(default=None, description="Affinity as Kubernetes has it.")
    runtime_class_name: Word | None = Field(default=None, description="RuntimeClass, such as nvidia.")
    priority_class_name: Word | None = Field(default=None, description="PriorityClass of the pods.")
    image_pull_secrets: Annotated[tuple[SecretReference, ...], ListMap("name")] = Field(
        default=(), max_length=8, description="Secrets that open the registry of the image."
    )
    volumes: Annotated[tuple[Volume, ...], ListMap("name")] = Field(
        default=(), max_length=32, description="Volumes beside the operator's own."
    )
    volume_mounts: tuple[VolumeMount, ...] = Field(
        default=(), max_length=64, description="Where they are mounted in the worker's container."
    )
    env: Annotated[tuple[EnvVar, ...], ListMap("name")] = Field(
        default=(), max_length=128, description="Variables of the worker's environment."
    )
    security_context: SecurityContexts = Field(
        default=SecurityContexts(), description="Overrides of what the pods are allowed."
    )
