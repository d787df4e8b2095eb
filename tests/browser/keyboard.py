"""Goes the way to an answer with keys alone, in Chromium by Playwright and in Firefox by Marionette."""

from __future__ import annotations

import time

PATIENCE_S = 60.0
#: More are on no page: who has to press the key so often does not find the place.
_MOST_TABS = 400
#: What a selector of Playwright finds, as far as the ways to answers use them: CSS with :has-text, :text-is and :has.
_FIND = r"""
window.found ??= (selector, root = document) => {
  const parts = [], ends = "'\"";
  let depth = 0, quote = "", part = "";
  for (const letter of selector) {
    if (quote) { if (letter === quote) quote = ""; } else if (ends.includes(letter)) quote = letter;
    else if (letter === "(") depth += 1; else if (letter === ")") depth -= 1;
    else if (letter === " " && !depth) { parts.push(part); part = ""; continue; }
    part += letter;
  }
  parts.push(part);
  const text = (one) => one.textContent.replace(/\s+/g, " ").trim();
  let those = [root];
  for (const one of parts) {
    const tests = [];
    let css = one;
    for (let at; (at = css.search(/:(has-text|text-is|has)\(/)) >= 0;) {
      const open = css.indexOf("(", at);
      let end = open, level = 0;
      do { level += { "(": 1, ")": -1 }[css[end]] ?? 0; end += 1; } while (level);
      const kind = css.slice(at + 1, open), inner = css.slice(open + 1, end - 1), words = inner.slice(1, -1);
      tests.push({
        "has-text": (node) => text(node).toLowerCase().includes(words.toLowerCase()),
        "text-is": (node) => text(node) === words,
        has: (node) => window.found(inner, node).length > 0,
      }[kind]);
      css = css.slice(0, at) + css.slice(end);
    }
    those = those.flatMap((node) => [...node.querySelectorAll(css || "*")]);
    those = [...new Set(those)].filter((node) => tests.every((test) => test(node)));
  }
  return those;
};
"""


class Keys:
    """The keyboard of one tab: `press` takes a character or a key's name, `evaluate` an expression of JavaScript."""

    def __init__(self, press, evaluate):
        self.press, self._evaluate = press, evaluate

    def evaluate(self, expression):
        """The value of an expression, which may call `found(selector)`."""
        return self._evaluate(f"(() => {{ {_FIND} return ({expression}); }})()")

    def wait_for(self, expression):
        """Wait until an expression is true; a page that is being left has no value."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if self.evaluate(expression):
                    return
            except Exception as error:  # noqa: BLE001  each browser has errors of its own for a page that goes
                last = error
            else:
                last = None
            assert time.monotonic() < deadline, f"never true: {expression} {last or ''}"
            time.sleep(0.05)

    def settled(self):
        """Wait until the page is drawn."""
        ready = "document.documentElement.matches('[data-timeline=\"ready\"][data-windows]')"
        self.wait_for(
            "document.readyState === 'complete' && !document.querySelector('main:has([data-waiting])')"
            f" && (!location.pathname.includes('/timeline') || {ready})"
        )

    def reach(self, selector):
        """Press Tab until the first element of the selector has the focus, which can be seen."""
        self.wait_for(f"found({selector!r}).length > 0")
        for _ in range(_MOST_TABS):
            self.press("Tab")
            if self.evaluate(f"found({selector!r})[0] === document.activeElement"):
                shown = "(([box]) => box && box.width > 0 && box.height > 0)(document.activeElement.getClientRects())"
                assert self.evaluate(shown), f"{selector} has the focus and no size"
                assert self.evaluate("document.activeElement.matches(':focus-visible')")
                return
        raise AssertionError(f"{selector} is not reached by Tab")

    def follow(self, selector):
        """Go to a link or button and press it, and wait for the page that it leads to."""
        self.reach(selector)
        self.evaluate("window.isOld = true")
        self.press("Enter")
        self.wait_for("!window.isOld")
        self.settled()

    def choose(self, selector, label):
        """Go to a list and type the beginning of what is to be chosen."""
        self.reach(selector)
        for letter in label[:4]:
            self.press(letter)
        chosen = f"found({selector!r})[0].selectedOptions[0].textContent.trim()"
        if self.evaluate(chosen) != label:  # a list that is open waits for Enter
            self.press("Enter")
        self.wait_for(f"{chosen} === {label!r}")
        self.wait_for("document.querySelector('#hits')?.textContent.includes('of')")
        self.press("Tab")  # letters are for the list as long as it has the focus


def solve(keys, task):
    """Go the way of a task from the page that is open, until its answer is there."""
    keys.settled()
    for step in task.way:
        verb, _, rest = step.partition(" ")
        if verb == "choose":
            keys.choose(*rest.split(" ", 1))
        elif verb == "type":
            for key in [rest] if rest == "Enter" else rest:
                keys.press(key)
            keys.settled()
            if rest == "Enter":
                keys.wait_for("/of/.test(document.querySelector('#hits')?.textContent ?? 'of')")
        else:
            keys.follow(step)
    keys.wait_for(f"found({task.answer!r}).length > 0")
