# Sourced by fetch-kafka and fetch-spark-kafka.

fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

# fetch_jars FOLDER POM JAR...
# Puts the jars that a pom names in a folder, unless it has the given ones already, and prints the folder.
fetch_jars() {
    folder=$1 pom=$2
    shift 2
    missing=
    for jar in "$@"; do
        [ -f "$folder/$jar" ] || missing=$jar
    done
    if [ -n "$missing" ]; then
        command -v mvn >/dev/null || fail "mvn not found; install Maven, or put the jars that $pom names in $folder"
        # Copy aside, then rename: an interrupted download never looks complete.
        mkdir -p "$(dirname "$folder")"
        aside=$(mktemp -d "$folder.XXXXXX")
        trap 'rm -rf "$aside"' EXIT
        mvn -q -B -f "$pom" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$aside" >&2 \
            || fail "Maven could not get the jars (its messages are above)"
        if [ -d "$folder" ]; then
            mv "$aside"/*.jar "$folder"/
        else
            mv "$aside" "$folder"
            chmod 755 "$folder"
        fi
    fi
    echo "$folder"
}
