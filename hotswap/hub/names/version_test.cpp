#include "hotswap/hub/names/version.h"

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;

TEST(Version, NormalFormOfEverySpelling) {
  const std::pair<const char*, const char*> table[] = {{"1", "1"},
                                                       {"v1.2.3", "1.2.3"},
                                                       {" 1.0 ", "1.0"},
                                                       {"1.0a1", "1.0a1"},
                                                       {"1.0-Alpha.1", "1.0a1"},
                                                       {"1.0_beta", "1.0b0"},
                                                       {"1.0c2", "1.0rc2"},
                                                       {"1.0-preview_3", "1.0rc3"},
                                                       {"1.0.post", "1.0.post0"},
                                                       {"1.0-1", "1.0.post1"},
                                                       {"1.0-r4", "1.0.post4"},
                                                       {"1.0.a-.post.", "1.0a0.post0"},
                                                       {"1.0c--1", "1.0rc0.post1"},
                                                       {"1.0alphadev1", "1.0a0.dev1"},
                                                       {"1.0rev2", "1.0.post2"},
                                                       {"1.0.dev", "1.0.dev0"},
                                                       {"1.0DEV3", "1.0.dev3"},
                                                       {"2!1.0", "2!1.0"},
                                                       {"1.0+Ubuntu-1_2.03", "1.0+ubuntu.1.2.3"},
                                                       {"01.002", "1.2"},
                                                       {"1.0a1.post2.dev3+x", "1.0a1.post2.dev3+x"},
                                                       {"999999999999999999", "999999999999999999"}};
  for (const auto& [text, normal] : table) EXPECT_EQ(Version::parse(text).str(), normal) << text;
}

TEST(Version, RefusesTheRest) {
  for (const char* bad : {"",
                          "v",
                          "x",
                          "1.",
                          "1..2",
                          ".1",
                          "1.0+",
                          "1.0+a..b",
                          "1.0+a_",
                          "1.0-",
                          "1.0foo",
                          "1.0 rc1",
                          "1.0.rc..",
                          "1!",
                          "!1",
                          "1.0a1a2",
                          "1.0.dev1.post1",
                          "1.0rca",
                          "9999999999999999999",
                          "1.0.post9999999999999999999",
                          "1.0-9999999999999999999",
                          "1.0\xff"}) {
    EXPECT_FALSE(Version::try_parse(bad)) << bad;
  }
  EXPECT_FALSE(Version::try_parse(std::string(1000000, '1')));
  EXPECT_FALSE(Version::try_parse(std::string("1.0\0", 4)));
  expect_has(message_of([] { Version::parse("x.y"); }), {"a version as 1.2", "'x.y'"});
}

TEST(Version, Order) {
  // PEP 440's own example, with what its text says of locals and epochs.
  const char* ascending[] = {
      "1.0.dev1",  "1.0a1.dev1", "1.0a1",   "1.0a1.post1", "1.0a2",     "1.0b1", "1.0rc1",         "1.0rc2.dev1",
      "1.0rc2",    "1.0",        "1.0+abc", "1.0+abc.5",   "1.0+abc.7", "1.0+5", "1.0.post1.dev1", "1.0.post1",
      "1.0.post2", "1.1.dev1",   "1.1",     "1.10",        "2",         "1!0.1"};
  for (size_t i = 0; i < std::size(ascending); ++i) {
    for (size_t j = 0; j < std::size(ascending); ++j) {
      EXPECT_EQ(Version::parse(ascending[i]) <=> Version::parse(ascending[j]), i <=> j)
          << ascending[i] << " and " << ascending[j];
    }
  }
  EXPECT_EQ(Version::parse("1.0"), Version::parse("v1.0.0"));
  EXPECT_EQ(Version::parse("1"), Version::parse("1.0.0.0"));
}

TEST(Specifier, EveryOperator) {
  struct Row {
    const char *specifier, *version;
    bool contains;
  };
  const Row table[] = {{"==1.0", "1.0.0", true},
                       {"==1.0", "1.0+cu130", true},
                       {"==1.0+cu130", "1.0", false},
                       {"==1.0+cu130", "1.0+cu130", true},
                       {"==2.*", "2.7", true},
                       {"==2.*", "2rc1", true},
                       {"==2.*", "20", false},
                       {"==2.0.*", "2", true},
                       {"==1!2.*", "2.1", false},
                       {"!=2.*", "2.1", false},
                       {"!=2.*", "3", true},
                       {"!=1.3", "1.3.0", false},
                       {"!=1.3", "1.3.1", true},
                       {">=2.0", "2.0", true},
                       {">=2.0", "2.0rc1", false},
                       {">=2.0", "2.0+x", true},
                       {"<=2.0", "2.0+x", true},
                       {"<=2.0", "2.0.post1", false},
                       {"<2.0", "2.0rc1", false},
                       {"<2.0", "1.9", true},
                       {"<2.0rc2", "2.0rc1", true},
                       {">2.0", "2.0.post1", false},
                       {">2.0", "2.0+x", false},
                       {">2.0", "2.0.1", true},
                       {">2.dev1", "2.post1", true},
                       {">2rc1", "2rc1.post1", false},
                       {">2.dev1", "2+x", true},
                       {"<2.post1", "2rc1", true},
                       {"<2.post1", "2.post1.dev1", false},
                       {">2.0.post1", "2.0.post2", true},
                       {"~=1.4", "1.9", true},
                       {"~=1.4", "2.0", false},
                       {"~=1.4", "1.3", false},
                       {"~=1.4.2", "1.4.9", true},
                       {"~=1.4.2", "1.5", false},
                       {"~=2.2.post3", "2.3", true},
                       {"~=2.2.post3", "2.2", false},
                       {"===1.0", "1.0", true},
                       {"===1.0", "1.0.0", false},
                       {">=2.0,<3.0", "2.9", true},
                       {">=2.0,<3.0", "3.0", false},
                       {" >= 2.0 , < 3.0 , != 2.5", "2.5", false},
                       {">=0", "0.dev1", false}};
  for (const Row& row : table) {
    EXPECT_EQ(SpecifierSet::parse(row.specifier).contains(Version::parse(row.version)), row.contains)
        << row.version << " in " << row.specifier;
  }
}

TEST(Specifier, RefusesTheRest) {
  for (const char* bad :
       {"",        ",",    ">=1,",  "1.0",      "=1.0",        "=>1",       ">=",  ">=x", "~=1", ">=1.*",  "<2.*",
        "~=1.2.*", ">1+x", ">=1+x", "==1rc1.*", "==1.post1.*", "==1.0+x.*", "===", "==",  "!",   ">=1;<2", "==1 0"}) {
    expect_has(message_of([&] { SpecifierSet::parse(bad); }), {"~= == != <= >= < > ===", bad});
  }
  EXPECT_NE(message_of([] { SpecifierSet::parse(std::string(100000, '>')); }), "no error");
}

std::vector<std::string> filtered(const char* specifier, std::initializer_list<const char*> versions) {
  std::vector<Version> all;
  for (const char* version : versions) all.push_back(Version::parse(version));
  std::vector<std::string> names;
  for (const Version& version : SpecifierSet::parse(specifier).filter(all)) names.push_back(version.str());
  return names;
}
using Names = std::vector<std::string>;

TEST(Specifier, PreReleasesOnlyWhenNamedOrAlone) {
  EXPECT_EQ(filtered(">=1", {"1.0", "2.0rc1"}), (Names{"1.0"}));
  EXPECT_EQ(filtered(">=1.5", {"1.0", "2.0rc1"}), (Names{"2.0rc1"}));
  EXPECT_EQ(filtered(">=1.0rc1", {"1.0", "2.0rc1"}), (Names{"1.0", "2.0rc1"}));
  EXPECT_EQ(filtered("!=1.0rc1", {"1.0", "2.0rc1"}), (Names{"1.0"}));
}

std::string commit(char c) { return std::string(40, c); }

// A repository of today: branches v1, v2, v10; of yesterday: tags.
RepoRefs some_refs() {
  return {.branches = {{"main", commit('0')},
                       {"v2", commit('2')},
                       {"v10", commit('a')},
                       {"v1", commit('1')},
                       {"v01", commit('f')},
                       {"v1_0", commit('f')},
                       {"vx", commit('f')}},
          .tags = {{"v0.9", commit('9')},
                   {"v2.1", commit('3')},
                   {"v2", commit('4')},
                   {"v3.0rc1", commit('5')},
                   {"2024", commit('6')},
                   {"nightly", commit('7')}}};
}

TEST(ResolveRef, VersionsAreBranches) {
  const RepoRefs refs = some_refs();
  EXPECT_EQ(branch_versions(refs), (std::vector<int64_t>{1, 2, 10}));
  EXPECT_EQ(resolve_version(refs, 10, "org/k").commit, commit('a'));
  EXPECT_EQ(resolve_version(refs, 10, "org/k").warning, "");
  const ResolvedRef old = resolve_version(refs, 2, "org/k");
  EXPECT_EQ(old.commit, commit('2'));
  EXPECT_EQ(old.ref, "v2");
  EXPECT_TRUE(old.is_branch);
  EXPECT_EQ(old.warning, "You are using version 2 of 'org/k', but version 10 is available.");
  expect_has(message_of([&] { resolve_version(refs, 3, "org/k"); }),
             {"Version 3 not found, available versions: 1, 2, 10"});
  expect_has(message_of([] {
               resolve_version({.branches = {{"main", commit('0')}}, .tags = {}}, 1, "org/k");
             }),
             {"no versions at all", "branches: main", "tags: none"});
  EXPECT_EQ(resolve_version({.branches = {}, .tags = {{"v1", commit('1')}}}, 1, "org/k").commit, commit('1'));
  const RepoRefs unstable{.branches = {{"v0", commit('0')}, {"v1", commit('1')}}, .tags = {}};
  EXPECT_EQ(resolve_version(unstable, 0, "org/k").commit, commit('0'));
  EXPECT_NE(resolve_version(unstable, 0, "org/k").warning, "");
}

TEST(ResolveRef, SpecifiersTakeTheHighestOfTagsAndBranches) {
  const RepoRefs refs = some_refs();
  const std::pair<const char*, const char*> table[] = {
      {">=2.0,<3.0", "v2.1"},     {"==2", "v2"},          {">=0", "v10"},  {"<1", "v0.9"}, {"~=1.0", "v1"},
      {">=3.0rc1,<4", "v3.0rc1"}, {">2.1,<4", "v3.0rc1"}, {"!=10", "v2.1"}};
  for (const auto& [specifier, ref] : table)
    EXPECT_EQ(resolve_specifier(refs, specifier, "org/k").ref, ref) << specifier;
  EXPECT_TRUE(resolve_specifier(refs, "==2", "org/k").is_branch);  // as version 2 is
  expect_has(message_of([&] { resolve_specifier(refs, ">=11", "org/k"); }),
             {"a version of org/k that fits '>=11'", "branches: main, v2, v10, v1", "v0.9, v2.1"});
}

TEST(ResolveRef, OfEqualVersionsTheOneThatIsSpelledWins) {
  const RepoRefs refs{.branches = {{"main", commit('0')}, {"v2", commit('2')}}, .tags = {{"v2.0.0", commit('3')}}};
  const std::pair<const char*, const char*> table[] = {{"==2.0.0", "v2.0.0"}, {"===2.0.0", "v2.0.0"}, {"==2", "v2"},
                                                       {"===2", "v2"},        {">=2.0.0", "v2"},      {"==2.0", "v2"}};
  for (const auto& [specifier, ref] : table)
    EXPECT_EQ(resolve_specifier(refs, specifier, "org/k").ref, ref) << specifier;
}

// serve-hub makes a tag of a name with dots only: v2rc1 is a branch there.
TEST(ResolveRef, BranchesOfPreAndPostReleasesAreFound) {
  const RepoRefs refs{.branches = {{"v1", commit('1')},
                                   {"v1.post1", commit('2')},
                                   {"v2rc1", commit('3')},
                                   {"v01", commit('4')},
                                   {"v3-dev", commit('5')},
                                   {"vnext", commit('6')},
                                   {"v2_0", commit('7')}},
                      .tags = {}};
  const std::pair<const char*, const char*> table[] = {
      {">=1", "v1.post1"}, {"==1", "v1"}, {"==2rc1", "v2rc1"}, {">=2rc1", "v2rc1"}, {"==1.post1", "v1.post1"}};
  for (const auto& [specifier, ref] : table)
    EXPECT_EQ(resolve_specifier(refs, specifier, "org/k").ref, ref) << specifier;
  EXPECT_NE(message_of([&] { resolve_specifier(refs, ">=3dev", "org/k"); }), "no error") << "only normal forms";
}

TEST(ResolveRef, NamesAndCommits) {
  const RepoRefs refs = some_refs();
  EXPECT_EQ(resolve_revision(refs, "main", "org/k").commit, commit('0'));
  EXPECT_EQ(resolve_revision(refs, "nightly", "org/k").commit, commit('7'));
  EXPECT_EQ(resolve_revision(refs, "v2", "org/k").commit, commit('2'));
  EXPECT_EQ(resolve_revision(refs, "refs/tags/v2", "org/k").commit, commit('4'));
  EXPECT_EQ(resolve_revision(refs, "refs/heads/v2", "org/k").commit, commit('2'));
  EXPECT_EQ(resolve_revision(refs, commit('e'), "org/k").commit, commit('e'));
  expect_has(message_of([&] { resolve_revision(refs, "refs/heads/nightly", "org/k"); }), {"nightly"});
  expect_has(message_of([&] { resolve_revision(refs, "no\nwhere", "org/k"); }),
             {"'no?where'", "branches: main", "tags: v0.9", "2024"});
}

}  // namespace
}  // namespace hotswap
