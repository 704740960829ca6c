SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null, // the default asks a public server
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
