# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""What saves time in tests of commands."""

import pytest
import quick


@pytest.fixture(scope="module")
def eagerly():
    """Functions run eagerly. test_cli and test_train_options train in graphs, too."""
    with quick.eager():
        yield


@pytest.fixture
def undrawn():
    """Pictures are empty files."""
    with quick.undrawn():
        yield
