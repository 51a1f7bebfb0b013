"""Write the generated pages: python -m tests.pages"""

from __future__ import annotations

from tests.pages import compatibility, strategies

for made in (strategies, compatibility):
    made.PAGE.write_text(made.page())
    print(f"wrote docs/{made.PAGE.name}")
