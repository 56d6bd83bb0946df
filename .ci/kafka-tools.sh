# Sourced by run and full: installs what the comparisons with Kafka need, the tests of pages and those of metrics.

# A compiler of Java 17 or newer.
has_jdk() {
    command -v java >/dev/null || return 1
    [[ $(javac -version 2>&1) =~ ^javac\ ([0-9]+) ]] && ((BASH_REMATCH[1] >= 17))
}

# The browser that looks at the pages of `cordwood view`, and axe-core, which runs in it.
browser() {
    .venv/bin/python tests/view/web/fetch-axe >/dev/null || return 1
    command -v chromium >/dev/null && command -v chromedriver >/dev/null && return
    if ((EUID)) || ! command -v apt-get >/dev/null; then
        echo "Install Chromium and its driver (Debian: chromium, chromium-driver): tests of pages need them." >&2
        return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends chromium chromium-driver
}

# Prometheus and promtool, which check the alerts and the dashboard.
prometheus_tools() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null && return
    if ((EUID)) || ! command -v apt-get >/dev/null; then
        echo "Install Prometheus (Debian: prometheus): tests of alerts and the dashboard need it and its promtool." >&2
        return 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # In runlevel 1 the package starts no service.
    RUNLEVEL=1 apt-get install -qq -y --no-install-recommends prometheus
}

kafka_tools() {
    local missing=()
    has_jdk || missing+=(openjdk-17-jdk-headless)
    { tests/kafka/fetch-kafka && tests/kafka/fetch-spark-kafka; } >/dev/null 2>&1 || command -v mvn >/dev/null || missing+=(maven)
    if ((${#missing[@]})); then
        if ((EUID)) || ! command -v apt-get >/dev/null; then
            echo "Install a JDK (17 or newer) and Maven: the comparisons with Kafka need them. Missing: ${missing[*]}" >&2
            return 1
        fi
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        # Newer systems no longer have 17; their default is newer.
        apt-get install -qq -y --no-install-recommends "${missing[@]}" \
            || apt-get install -qq -y --no-install-recommends "${missing[@]/openjdk-17/default}"
        has_jdk || { echo "Even now javac on the path is not 17 or newer: $(javac -version 2>&1)" >&2; return 1; }
    fi
    tests/kafka/fetch-kafka
    tests/kafka/fetch-spark-kafka
}
