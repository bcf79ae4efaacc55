"""containers/: the image, the Apptainer definition and the MPIJob agree, and their steps work."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.mpijob import ROOT

from nnmpi import train

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

HERE = ROOT / "containers"
DOCKERFILE = (HERE / "Dockerfile").read_text()
DEFINITION = (HERE / "nnmpi.def").read_text()
SSHD = dict(re.findall(r"^(\w+) (.*)$", (HERE / "sshd_config").read_text(), re.M))
JOB = yaml.safe_load((HERE / "mpijob.yaml").read_text())
INSTALL = r"sh /src/containers/install /src /opt/nnmpi "

# What the operator's definition (kubeflow.org/v2beta1) and Kubernetes allow of the fields that a
# job of ours may use: a type, a set of values, a list of one form, or a dict; ! names what must be.
CONTAINER = {
    "!name": str,
    "!image": str,
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "securityContext": {
        "runAsNonRoot": bool,
        "runAsUser": int,
        "allowPrivilegeEscalation": bool,
    },
    "command": [str],
    "args": [str],
    "readinessProbe": {"tcpSocket": {"!port": int}},
    "resources": {"limits": {"cpu": str, "memory": str}},
    "volumeMounts": [{"!name": str, "!mountPath": str}],
}
REPLICAS = {
    "replicas": int,
    "restartPolicy": {"Never", "OnFailure"},
    "!template": {
        "!spec": {
            "!containers": [CONTAINER],
            "volumes": [{"!name": str, "emptyDir": {"medium": {"Memory"}, "sizeLimit": str}}],
        }
    },
}
MPIJOB = {
    "!apiVersion": {"kubeflow.org/v2beta1"},
    "!kind": {"MPIJob"},
    "!metadata": {"!name": str},
    "!spec": {
        "slotsPerWorker": int,
        "runLauncherAsWorker": bool,
        "mpiImplementation": {"OpenMPI", "Intel", "MPICH"},
        "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
        "sshAuthMountPath": str,
        "runPolicy": {
            "cleanPodPolicy": {"None", "Running", "All"},
            "backoffLimit": int,
            "ttlSecondsAfterFinished": int,
            "activeDeadlineSeconds": int,
            "suspend": bool,
        },
        "!mpiReplicaSpecs": {"!Launcher": REPLICAS, "Worker": REPLICAS},
    },
}


def wrong(value: Any, form: Any, where: str = "job") -> list[str]:
    """What of a value does not have this form."""
    if isinstance(form, type):
        return [] if type(value) is form else [f"{where} is {value!r}, no {form.__name__}"]
    if isinstance(form, set):
        return [] if value in form else [f"{where} is {value!r}, none of {sorted(form)}"]
    if isinstance(form, list):
        return [w for i, one in enumerate(value) for w in wrong(one, form[0], f"{where}[{i}]")]
    forms = {name.lstrip("!"): inner for name, inner in form.items()}
    lack = [f"{where} has no {n[1:]}" for n in form if n[0] == "!" and n[1:] not in value]
    unknown = [f"{where} has {name}, which is no field" for name in value if name not in forms]
    inner = [w for n, v in value.items() if n in forms for w in wrong(v, forms[n], f"{where}.{n}")]
    return lack + unknown + inner


def container(of: str) -> dict[str, Any]:
    (only,) = JOB["spec"]["mpiReplicaSpecs"][of]["template"]["spec"]["containers"]
    return only


def test_the_dockerfile_passes_its_linter() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed: the extra `test` has it on Linux, for x86-64")
    command = [hadolint, "--no-color", HERE / "Dockerfile"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stdout) == (0, "")


def test_what_is_copied_into_an_image_is_there_and_not_ignored() -> None:
    kept = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M)
    copied = re.findall(r"^COPY (\S+) /\S+$", DOCKERFILE, re.M)
    assert len(copied) == 3
    for name in (*kept, *copied):
        assert (ROOT / name).exists(), name
        assert name == "." or name.partition("/")[0] in kept, name
    assert (
        re.findall(r"^FROM (\S+)", DOCKERFILE, re.M) == ["${BASE}"] * 2
    )  # venvs name their Python


def test_the_definition_does_what_the_dockerfile_does() -> None:
    kept = {*re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M)}
    files = dict(re.findall(r"^    (\S+) /src/(\S+)$", DEFINITION, re.M))
    assert all(name == to and (ROOT / name).exists() for name, to in files.items())
    assert {name.partition("/")[0] for name in files} == kept
    (base,) = {*re.findall(r"^(?:From: |ARG BASE=)(\S+)$", DEFINITION + DOCKERFILE, re.M)}
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.M)
    assert (re.findall(f"{INSTALL}(.*)$", DOCKERFILE, re.M), base[:7]) == (['"$EXTRAS"'], "python:")
    assert re.findall(f"{INSTALL}(.*)$", DEFINITION, re.M) == [extras]
    (first, _), packages = (
        re.findall(r"apt-get install -y --no-install-recommends (.*?)(?: \\)?$", text, re.M)
        for text in (DOCKERFILE, DEFINITION)
    )
    assert [first] == packages


def test_the_job_has_the_fields_of_the_operator() -> None:
    assert wrong(JOB, MPIJOB) == []
    spec = {**JOB["spec"], "slotsPerWorker": "2", "mpiImplementation": "openmpi", "workers": 2}
    found = wrong({**JOB, "spec": spec, "metadata": {}}, MPIJOB)
    assert [words.split()[0] for words in found] == [
        *("job.metadata", "job.spec", "job.spec.slotsPerWorker", "job.spec.mpiImplementation")
    ]


def test_the_job_runs_what_there_is() -> None:
    spec, launcher, worker = JOB["spec"], container("Launcher"), container("Worker")
    workers, slots = spec["mpiReplicaSpecs"]["Worker"]["replicas"], spec["slotsPerWorker"]
    mpirun, *options = launcher["command"]
    assert (mpirun, options) == (
        "mpirun",
        ["--hostfile", "/etc/mpi/hostfile", "-n", str(workers * slots)],
    )
    name, command, *arguments = launcher["args"]
    assert (name, command, train.config(arguments).data) == ("nnmpi", "train", "digits")
    assert float(worker["resources"]["limits"]["cpu"]) >= slots
    (mount,) = worker["volumeMounts"]
    assert mount["mountPath"] == "/dev/shm"


def test_who_runs_and_how_ranks_reach_each_other_is_the_same_everywhere() -> None:
    spec, launcher, worker = JOB["spec"], container("Launcher"), container("Worker")
    (user,), (created,) = (
        re.findall(pattern, DOCKERFILE, re.M) for pattern in (r"^USER (\d+)$", r"--uid (\d+) nnmpi")
    )
    assert int(user) > 0
    assert created == user
    assert {one["securityContext"]["runAsUser"] for one in (launcher, worker)} == {int(user)}
    assert f"COPY containers/sshd_config {worker['command'][-1]}\n" in DOCKERFILE
    assert f"openssh-server {chr(92)}" in DOCKERFILE
    assert os.path.dirname(SSHD["HostKey"]) == spec["sshAuthMountPath"]
    (port,) = re.findall(r"^    Port (\d+)$", (HERE / "ssh_config").read_text(), re.M)
    assert SSHD["Port"] == port == str(worker["readinessProbe"]["tcpSocket"]["port"])
    (path,) = re.findall(r"^ENV PATH=([^:]+):\$PATH$", DOCKERFILE, re.M)
    assert SSHD["SetEnv"].startswith(f"PATH={path}:")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("has_compiler", [True, False])
def test_the_steps_of_an_image_install_what_trains(has_compiler: bool, tmp_path: Path) -> None:
    """As in an image: into a new environment, from what .dockerignore keeps; needs PyPI."""
    source, venv = tmp_path / "src", tmp_path / "venv"
    leave = shutil.ignore_patterns("*.so", "__pycache__")
    for name in re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name, **({"ignore": leave} if copy is shutil.copytree else {}))
    own = {"PATH": f"{Path(sys.executable).resolve().parent}:{os.defpath}", "HOME": str(tmp_path)}
    own |= {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "OMPI_"))}
    own |= {"NNMPI_BUILD": "native"} | ({} if has_compiler else {"CC": "/bin/false"})

    def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=own, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400
        )

    built = ran("sh", source / "containers" / "install", source, venv, "")
    if not has_compiler:
        assert built.returncode == 1
        assert built.stderr.splitlines()[-1].endswith("install gcc, libc6-dev and Python's headers")
        return
    assert built.returncode == 0, built.stderr
    own["PATH"] = f"{venv / 'bin'}:{own['PATH']}"
    assert "two ranks found each other" in ran("nnmpi", "doctor").stdout
    options = ["--model", "iris-mlp", "--data", "iris", "--epochs", "2"]
    trained = ran("mpirun", "--oversubscribe", "-n", "2", "nnmpi", "train", *options)
    assert (trained.returncode, trained.stdout[-200:].count("done: ")) == (0, 1), trained.stderr
