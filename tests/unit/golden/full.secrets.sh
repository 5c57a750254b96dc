# shellcheck shell=bash
# The values of the config's env that look like secrets. Never shown; mode 0600.
export WANDB_API_KEY=w-123456
