#!/usr/bin/env bash
# run.sh [NAME...]: runs every finding (or those named), and says which of them behave as written and which have changed.
set -uo pipefail
cd "$(dirname "$0")"
names=("$@")
[ ${#names[@]} -gt 0 ] || for file in *.sh; do [ "$file" = run.sh ] || names+=("${file%.sh}"); done
changed=0
for name in "${names[@]}"; do
  if said=$(bash "$name.sh" 2>&1); then echo "as written  $name"; else echo "CHANGED     $name"; tail -n 3 <<< "$said"; changed=1; fi
done
exit $changed
