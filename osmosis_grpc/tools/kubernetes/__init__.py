"""Sandboxes in pods of a Kubernetes cluster. Needs the extra `kubernetes`."""

from osmosis_grpc.tools.kubernetes.cluster import KubernetesCluster
from osmosis_grpc.tools.kubernetes.config import KubernetesConfig
from osmosis_grpc.tools.kubernetes.sandbox import KubernetesSandbox, PodSnapshot

__all__ = ["KubernetesCluster", "KubernetesConfig", "KubernetesSandbox", "PodSnapshot"]
