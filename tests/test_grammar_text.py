"""Patterns and EBNF rules: what a grammar takes, and what it refuses with its reason."""

from __future__ import annotations

import pytest

from g2c_serving.sample.ebnf_check import check_ebnf
from g2c_serving.sample.regex_check import check_regex

# ---- patterns ----


@pytest.mark.parametrize(
    "pattern, size",
    [
        ("[0-9]+", 1),
        ("^a|b$", 2),
        ("(a|bc){2,3}c*?", 10),
        ("a\\.b", 3),
        ("é[^x]", 2),
        (" ", 1),
        ("\\d\\w\\s", 3),
        ("^a\\$", 2),
        ("^a\\\\$", 2),
        ("((a{3}){0,4}){5,}", 60),
        ("\\x41\\u00e9\\n", 3),
        ("a{0}", 1),
        ("a{10000}", 10_000),
        ("[^\\n\\t\\r]+", 1),
        ('\n\t"', 3),
        ("[!-é]\\W[^\\d]", 3),
        ("[a-z]*" * 3, 7),
    ],
)
def test_patterns_that_serve(pattern, size):
    assert check_regex(pattern) == size


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        3,
        None,
        "a" * 10_001,
        "a{10001}",
        "(a{101}){100}",
        "(?=a)b",
        "(?i)a",
        "a^b",
        "a$b",
        "(",
        "a)",
        "*a",
        "\\1",
        "\\bx",
        "[a",
        "[]a]",
        "a\\",
        "a**",
        "(?<n>a)",
        "\ud800",
        "a{1000000000000}",
        "a{3,2}",
        "a{,3}",
        "a{",
        "(" * 5000,
        "(*)",
        "[\\d-z]+",
        "[a-\\w]",
        "[z-a]",
        "[a-z]*" * 150,
        "(|*)",
    ],
)
def test_patterns_that_do_not(pattern):
    with pytest.raises(ValueError):
        check_regex(pattern)


# ---- EBNF ----


@pytest.mark.parametrize(
    "rules",
    [
        'root ::= "a"',
        'root ::= root "a" | "b"',
        'root ::= item* # rules\nitem ::= [a-z"\\]] | "\\""',
        'root ::= "(" root ")" | ""',
        'root ::= ("a" | root root)',
        'root ::= "a" (x)?\nx ::= "x" (x | "y")',
        'root ::= "x"{2,3} y{0,2}\ny ::= "y"',
        "root::=[^a]+",
        'root ::= ("a"{0,98} | "b"){0,100}',
        'root ::= "[" root{0,9} "]" | "x"{3}',
    ],
)
def test_rules_that_serve(rules):
    check_ebnf(rules)


@pytest.mark.parametrize(
    "rules, words",
    [
        ("", "empty"),
        (None, "str"),
        ("x" * 20_001, "characters"),
        ('root ::= "a"{10001}', "often"),
        ('root ::= "\ud800"', "lone surrogate"),
        ('a ::= "x"', "no 'root'"),
        ("root ::= a", "not defined"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= "a" root', "'root' has no way out"),
        ("root ::= root", "no way out"),
        ('root ::= "c" | b\nb ::= "x" b', "'b' has no way out"),
        ("root ::= a\na ::= b\nb ::= a", "no way out"),
        ('root ::= (root | "a" root)+', "no way out"),
        ('root ::= root{1,2} "a"', "no way out"),
        ("root ::= Token(258)", "not serve"),
        ('root ::= "a" (= "b")', "not serve"),
        ('root ::= Regex("a+")', "not serve"),
        ("%%%", "serve"),
        ('root ::= ("a"{0,101}){0,100}', "repeat too much"),
        ('root ::= x{0,101}\nx ::= "y" | "a"{0,100}', "repeat too much"),
        ('root ::= "ab"{0,5001}', "repeat too much"),
        ("root ::= " + "[a-z]* " * 150, "repeat too much"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a")', "not opened"),
        ('"a"', "begin"),
        (
            "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(500)),
            "rules|not defined",
        ),
    ],
)
def test_rules_that_do_not(rules, words):
    with pytest.raises(ValueError, match=words):
        check_ebnf(rules)
