# Sourced: the environment of .venv's uv. uv reads neither PIP_* nor pip.conf, so it gets what they say.

uv_environment() { # usage: (uv_environment VENV && "$uv" ...), in a subshell
  local key value
  while IFS='=' read -r key value; do
    value=${value#\'} && value=${value%\'}
    case "${key##*.}" in
      index-url) export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$value} ;;
      extra-index-url) export UV_INDEX=${UV_INDEX:-${value//\\n/ }} ;;
      find-links) export UV_FIND_LINKS=${UV_FIND_LINKS:-${value//\\n/,}} ;;
      cert) export SSL_CERT_FILE=${SSL_CERT_FILE:-$value} ;;
      default-timeout | timeout) export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-$value} ;;
    esac
  done < <(.venv/bin/python -m pip config list 2>/dev/null)
  export UV_INDEX_STRATEGY=${UV_INDEX_STRATEGY:-unsafe-best-match} # what pip does
  export VIRTUAL_ENV=$1
}
