#!/usr/bin/env bash
# Installs what the tests with real NATs need: nftables, iproute2 and a home router's UPnP daemon.
# Usage: tools/setup_nat.sh. It says what it installs; a second run finds all there.
set -euo pipefail

say() { printf 'nat: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

[ "$(uname -s)" = Linux ] || fail "network namespaces are Linux's"
PATH=$PATH:/usr/sbin:/sbin
packages=()
command -v ip >/dev/null && command -v ss >/dev/null || packages+=(iproute2)
command -v nft >/dev/null || packages+=(nftables)
command -v miniupnpd >/dev/null || packages+=(miniupnpd miniupnpd-nftables)
[ "${#packages[@]}" -gt 0 ] || exit 0

command -v apt-get >/dev/null || fail "these are missing, and there is no apt-get to install them: ${packages[*]}"
[ "$(id -u)" -eq 0 ] || fail "run this as root first: apt-get install ${packages[*]}"
say "installing with apt-get: ${packages[*]}"
log=$(mktemp)
apt_get=(env DEBIAN_FRONTEND=noninteractive apt-get)
if ! { "${apt_get[@]}" update && "${apt_get[@]}" install -y --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    fail "apt-get could not install ${packages[*]}"
fi
rm -f "$log"
