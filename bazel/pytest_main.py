# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs pytest on the files it is given, with the library that Bazel built."""

import os
import sys

import pytest

if __name__ == "__main__":
    # The tests start processes elsewhere, so relative paths would not do.
    library = os.path.abspath(os.environ["TF_CAPSOPS_LIBRARY"])
    os.environ["TF_CAPSOPS_LIBRARY"] = library
    arguments = ["-p", "no:cacheprovider", "--rootdir=.", "--confcutdir=."]
    sys.exit(pytest.main(arguments + sys.argv[1:]))
