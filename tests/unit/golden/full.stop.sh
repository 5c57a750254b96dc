#!/usr/bin/env bash
# Stops everything of gpt-tiny on node 0, gpu01 (run 20260102-030405-abcd), as trainui would.
# By hand: bash stop.sh [--kill]. Exit status 0: nothing is left; 1: it says what is.

here=${BASH_SOURCE[0]%/*}
case ${BASH_SOURCE[0]} in
  /*) ;;
  */*) here=$PWD/$here ;;
  *) here=$PWD ;;
esac
python=python3
if ! command -v -- "$python" >/dev/null; then
  printf 'stop.sh: no %s on PATH (%s); set python=... in this script to a Python 3.8 or newer\n' "$python" "$PATH" >&2
  exit 69
fi
cd -- "$here" || exit 69
exec -- "$python" -I -S "$here/agent.py" stop "$@"
