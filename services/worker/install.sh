#!/bin/sh
# Part of the image's build: install what a requirements file pins, then take out what the accelerator does not need.
set -eu
requirements=$1
if [ -e /run/secrets/installer ]; then . /run/secrets/installer; fi
if [ -e /run/secrets/uv ]; then export UV_CONFIG_FILE=/run/secrets/uv; fi
# Bytecode is made here because pods cannot write it: their root is read-only.
export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy PYC_INVALIDATION_MODE=UNCHECKED_HASH
uv=/build/tools/bin/uv
[ -e /opt/apparate/bin/python ] || $uv venv --quiet --allow-existing --python python3 /opt/apparate
case "$ACCELERATOR" in
    cuda) ;;
    cpu) # a part that is taken out again would be fetched and installed for every file
        sed -e '/^nvidia-cusolver==/,/[^\\]$/d' -e '/^triton==/,/[^\\]$/d' "$requirements" > /tmp/requirements.txt
        requirements=/tmp/requirements.txt ;;
    *) echo "ACCELERATOR is $ACCELERATOR, allowed cuda and cpu" >&2; exit 2 ;;
esac
$uv pip install --no-deps --require-hashes --compile-bytecode --python /opt/apparate/bin/python -r "$requirements"
if [ "$ACCELERATOR" = cpu ]; then
    rm -f /tmp/requirements.txt
    cd /opt/apparate/lib/python3*/site-packages/nvidia && rm -f cudnn/lib/libcudnn_*.so* cu*/lib/libnvrtc*.alt.so*
fi
