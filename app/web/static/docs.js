// As the system has it; the style sheet asks for a class.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null, // the default asks a public server
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
