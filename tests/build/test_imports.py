# Copyright 2026 The tf_capsops Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every part of the package can be the first that a process imports."""

import fresh
import pytest

# The package itself would import its parts in an order of its own.
_FIRST = """
import importlib, sys, types

package = types.ModuleType("tf_capsops")
package.__path__ = [sys.argv[1]]
sys.modules["tf_capsops"] = package
importlib.import_module(sys.argv[2])
importlib.import_module(sys.argv[3])
print("imported")
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    "first, second", [("layers", "inq"), ("inq", "layers"), ("models", "inq")]
)
def test_parts_can_be_imported_in_any_order(first, second):
    parts = f"tf_capsops.{first}", f"tf_capsops.{second}"
    assert fresh.run(_FIRST, fresh.ROOT / "tf_capsops", *parts) == "imported\n"
