"""Holds rendered manifests strictly against the schemas of the Kubernetes that their file names end with.

    validate.py NAME-1.29.yaml ...

Objects of operators have no schema there and are passed over: tools/operators looks at those of Prometheus's, a real
server at KEDA's. Fails with every fault of every file.
"""

import re
import sys

import kubernetes_validate
import yaml

OPERATORS = ("monitoring.coreos.com/", "keda.sh/")


def faults(path):
    version = re.search(r"-(1\.\d+)\.yaml$", path).group(1)
    with open(path, encoding="utf-8") as text:
        objects = [it for it in yaml.safe_load_all(text) if it]
    if not objects:
        yield f"{path}: nothing was rendered"
    for it in objects:
        if it["apiVersion"].startswith(OPERATORS):
            continue
        try:
            kubernetes_validate.validate(it, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(str(part) for part in error.path)
            yield f"{path}: {it['kind']} {it['metadata']['name']}: {place}: {error.message}"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    found = [fault for path in sys.argv[1:] for fault in faults(path)]
    print(*found, sep="\n")
    sys.exit(bool(found))
