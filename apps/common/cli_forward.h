#pragma once
// CLI11 by name. Its header takes four seconds to compile wherever it is included, so only what talks to it includes
// it.

namespace CLI {

class App;
class Validator;

}  // namespace CLI
