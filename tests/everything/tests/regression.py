# Some of Python's own regression tests: those that neither start threads or processes nor look at the time.
import unittest

NAMES = """
test.test_json.test_decode.TestCDecode test.test_json.test_dump.TestCDump test.test_json.test_fail.TestCFail
test.test_json.test_float.TestCFloat test.test_json.test_float.TestPyFloat test.test_json.test_indent.TestCIndent
test.test_json.test_pass1.TestCPass1 test.test_json.test_scanstring.TestCScanstring
test.test_re.DebugTests test.test_re.PatternReprTests.test_inline_flags test.test_re.ReTests.test_basic_re_sub
test.test_re.ReTests.test_re_escape_bytes test.test_re.ReTests.test_re_findall test.test_re.ReTests.test_re_groupref
test.test_re.ReTests.test_re_split test.test_re.ReTests.test_symbolic_groups
test.test_sqlite3.test_factory.RowFactoryTests test.test_sqlite3.test_hooks.CollationTests
test.test_sqlite3.test_types.SqliteTypeTests test.test_sqlite3.test_userfunctions.AggregateTests
test.test_zlib.ChecksumTestCase test.test_zlib.ExceptionTestCase test.test_zlib.CompressTestCase.test_incomplete_stream
test.test_decimal.CArithmeticOperatorsTest test.test_decimal.CContextFlags test.test_decimal.CExplicitConstructionTest
test.test_decimal.CFormatTest
""".split()

suite = unittest.defaultTestLoader.loadTestsFromNames(NAMES)
result = unittest.TestResult()
suite.run(result)
print(result.testsRun, "tests", len(result.skipped), "skipped")
for test, said in result.failures + result.errors:
    print(test, said)
