"""Whether a PrometheusRule holds exactly the groups of a file of rules:  same.py PROMETHEUSRULE RULES"""

import sys

import yaml

if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as rule, open(sys.argv[2], encoding="utf-8") as rules:
        rendered, written = yaml.safe_load(rule)["spec"], yaml.safe_load(rules)
    sys.exit(None if rendered == written else "the rendered rules differ from " + sys.argv[2])
