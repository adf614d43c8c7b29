"""The manifests in conf/kubernetes, as the Kubernetes client that Spark brings understands them.

No cluster is asked. What a manifest says twice has to agree: names, ports, volumes, addresses, and
the configuration of the bookies, which is loaded as a bookie loads it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from py4j.java_collections import JavaMap  # type: ignore[import-untyped]

from bookie_server.config import load
from spark_ledger.version import __version__
from tests.spark.clusters import ROOT

FOLDER = ROOT / "conf" / "kubernetes"
NAMESPACE = "ledgers"


class Manifests:
    """All objects of the folder, by kind and name."""

    def __init__(self, jvm: Any) -> None:
        client = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
        self.objects: dict[tuple[str, str], Any] = {}
        for path in sorted(FOLDER.glob("*.yaml")):
            for text in path.read_text(encoding="utf-8").split("\n---\n"):
                made = client.unmarshal(text)
                known = json.loads(client.asJson(made))
                assert not list(unknown_fields(made, known)), path.name
                self.objects[known["kind"], known["metadata"]["name"]] = known

    def of_kind(self, kind: str) -> list[Any]:
        return [each for (its, _), each in self.objects.items() if its == kind]


def unknown_fields(made: Any, known: dict[str, Any]) -> list[str]:
    """Names that Kubernetes does not have. ``made`` is the client's object, ``known`` its JSON."""
    found = list(made.getAdditionalProperties())
    for name, value in known.items():
        if not isinstance(value, dict | list) or name in found:
            continue
        child = getattr(made, f"get{name[0].upper()}{name[1:]}")()
        pairs = zip(child, value, strict=True) if isinstance(value, list) else [(child, value)]
        for inner, said in pairs:
            if isinstance(said, dict) and not isinstance(inner, JavaMap):
                found += unknown_fields(inner, said)
    return found


@pytest.fixture(scope="module")
def manifests(spark: Any) -> Manifests:
    return Manifests(spark._jvm)


def container(stateful_set: Any) -> Any:
    (only,) = stateful_set["spec"]["template"]["spec"]["containers"]
    return only


def test_misspelt_field_is_found(spark: Any) -> None:
    client = spark._jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
    text = (FOLDER / "bookies.yaml").read_text(encoding="utf-8").split("\n---\n")[-1]
    made = client.unmarshal(text.replace("containerPort: 8181", "containerPrt: 8181"))
    assert unknown_fields(made, json.loads(client.asJson(made))) == ["containerPrt"]


def test_manifests_agree_with_each_other(manifests: Manifests) -> None:
    assert {each["metadata"]["namespace"] for each in manifests.objects.values()} == {NAMESPACE}
    sets = manifests.of_kind("StatefulSet")
    assert {each["metadata"]["name"] for each in sets} == {"zookeeper", "bookie", "copy"}
    for each in sets:
        spec, pod = each["spec"], each["spec"]["template"]["spec"]
        labels = spec["template"]["metadata"]["labels"]
        service = manifests.objects["Service", spec["serviceName"]]["spec"]
        assert spec["selector"]["matchLabels"] == labels == service["selector"]
        assert service["clusterIP"] == "None", "each pod has a name of its own"
        opened = {port["name"]: port["containerPort"] for port in container(each)["ports"]}
        assert {port["name"]: port["port"] for port in service["ports"]} == opened
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        assert {mount["name"] for mount in container(each)["volumeMounts"]} == volumes
        for volume in pod.get("volumes", ()):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in manifests.objects
            else:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", claim) in manifests.objects
    for budget in manifests.of_kind("PodDisruptionBudget"):
        name = budget["metadata"]["name"]
        labels = budget["spec"]["selector"]["matchLabels"]
        assert labels == manifests.objects["Service", name]["spec"]["selector"]


def test_all_name_the_same_zookeeper_and_image(manifests: Manifests) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.yaml"))
    servers = manifests.objects["StatefulSet", "zookeeper"]["spec"]["replicas"]
    hosts = [f"zookeeper-{n}.zookeeper.{NAMESPACE}.svc" for n in range(servers)]
    uris = set(re.findall(r"zk://[^\s\"]+", text))
    assert uris == {"zk://" + ",".join(f"{host}:2181" for host in hosts) + "/ledgers"}
    (variable,) = container(manifests.objects["StatefulSet", "zookeeper"])["env"][:1]
    assert re.findall(r"=([^:]+):2888:3888;2181", variable["value"]) == hosts
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    images = set(re.findall(r"[\w.]+/spark-ledger:[\w.]+", text + dockerfile))
    assert images >= {f"registry.example/spark-ledger:{__version__}"} and len(images) == 1
    pinned = re.search(r"^pyspark==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned and f"ARG SPARK={pinned.group(1)}\n" in dockerfile


def test_bookies_of_the_manifest_start_with_its_configuration(
    manifests: Manifests, tmp_path: Path
) -> None:
    """The ports are open, each directory is on a volume, and clients are told the pod's name."""
    text = manifests.objects["ConfigMap", "bookie"]["data"]["bookie.toml"]
    (tmp_path / "bookie.toml").write_text(text.replace("POD", "bookie-0"), encoding="utf-8")
    config = load(tmp_path / "bookie.toml")
    bookies = manifests.objects["StatefulSet", "bookie"]
    opened = {port["name"]: port["containerPort"] for port in container(bookies)["ports"]}
    assert opened == {"bookie": config.listen.port, "admin": config.admin.port}
    assert config.listen.advertised_address == f"bookie-0.bookie.{NAMESPACE}.svc:3181"
    mounts = {mount["mountPath"] for mount in container(bookies)["volumeMounts"]}
    directories = [config.storage.journal_directory, *config.storage.ledger_directories]
    assert {str(Path(directory).parent) for directory in directories} < mounts
    assert bookies["spec"]["replicas"] > 3, "one may be away, and E = 3 are there"


def test_driver_of_the_manifest_is_found_by_its_executors(manifests: Manifests) -> None:
    driver = container(manifests.objects["StatefulSet", "copy"])
    given = dict(
        part.split("=", 1)
        for before, part in zip(driver["command"], driver["command"][1:], strict=False)
        if before == "--conf"
    )
    opened = {port["name"]: str(port["containerPort"]) for port in driver["ports"]}
    assert given["spark.driver.host"] == f"copy-0.copy.{NAMESPACE}.svc"
    assert given["spark.driver.port"] == opened["driver"]
    assert given["spark.driver.blockManager.port"] == opened["blocks"]
    assert given["spark.kubernetes.container.image"] == driver["image"]
    compile(manifests.objects["ConfigMap", "copy"]["data"]["copy.py"], "copy.py", "exec")
