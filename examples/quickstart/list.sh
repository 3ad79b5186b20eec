#!/bin/sh
# Prints the zones to look at, one a line: those that are declared, and those whose file is left from an earlier
# declaration. If it fails, evenkeel concludes nothing and asks again.
set -eu
declared=$(ls zones)
left=$(ls generated 2>/dev/null | sed 's/\.zone$//')
printf '%s\n' "$declared" "$left" | sed '/^$/d' | sort -u
