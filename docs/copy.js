// A copy button of a console block takes the commands, without prompts and output.
document.addEventListener(
  "click",
  ({ target }) => {
    const button = target.closest?.(".language-console .md-clipboard, .language-console [data-md-type=copy]");
    if (!button) return;
    const commands = [];
    let goesOn = false;
    for (const line of button.closest(".language-console").querySelector("code").textContent.split("\n")) {
      if (line.startsWith("$ ") || goesOn) {
        commands.push(line.replace(/^\$ /, ""));
        goesOn = line.endsWith("\\");
      }
    }
    button.setAttribute("data-clipboard-text", commands.join("\n"));
  },
  true, // before the theme reads the text
);
