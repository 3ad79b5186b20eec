"""Compares the values of the chart with their schema:  values.py VALUES SCHEMA

Every key of the values stands in the schema and the other way round, down to where the schema lets anything stand.
`config` is evenkeel's own, and compared elsewhere. `global` is what parents of the chart set.
"""

import json
import sys

import yaml

OWN = {"config"}
OF_PARENTS = {"global"}


def differences(values, schema, path=""):
    known = schema.get("properties")
    if known is None or not isinstance(values, dict):
        return
    for key in values.keys() - known.keys():
        yield f"{path}{key} is not in the schema"
    for key in known.keys() - values.keys() - OF_PARENTS:
        # A probe may have more settings than the chart gives it.
        if not path.endswith("Probe."):
            yield f"{path}{key} has no default in values.yaml"
    for key in values.keys() & known.keys() - OWN:
        yield from differences(values[key], known[key], f"{path}{key}.")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as values, open(sys.argv[2], encoding="utf-8") as schema:
        found = list(differences(yaml.safe_load(values), json.load(schema)))
    print(*found, sep="\n")
    sys.exit(bool(found))
